// Two methods: paired differences by setting, and both curves in one chart.
"use strict";

(function () {
  const { el, number, mean } = flnl;
  const first = document.getElementById("a"), second = document.getElementById("b");
  const metric = document.getElementById("metric"), out = document.getElementById("compared");
  const asked = new URLSearchParams(location.hash.slice(1));
  const has = (select, slug) => [...select.options].some((option) => option.value === slug);
  if (has(first, asked.get("a"))) first.value = asked.get("a");
  const other = [...second.options].find((option) => option.value !== first.value);
  second.value = has(second, asked.get("b")) ? asked.get("b") : (other || second.options[0]).value;

  const compare = (one, two) => {
    const place = Number(metric.value);
    flnl.charts.length = 0;
    out.replaceChildren();
    let cells = 0;
    const tables = [...new Set(one.cells.map((cell) => cell.table))];
    for (const table of tables) {
      const pairs = one.cells
        .filter((cell) => cell.table === table)
        .map((cell) => [cell, two.cells.find((c) => c.table === table && c.setting === cell.setting)])
        .filter(([, cell]) => cell);
      if (!pairs.length) continue;
      cells += pairs.length;
      const rows = pairs.map(([left, right]) => {
        const seeds = Object.keys(left.values).filter((seed) => seed in right.values);
        const both = [left, right].map((cell) => seeds.map((seed) => cell.values[seed][place]));
        const differences = seeds.map((_, i) => both[0][i] - both[1][i]);
        const wins = differences.filter((d) => d >= 0.005).length, losses = differences.filter((d) => d <= -0.005).length;
        const signed = seeds.length ? mean(differences) : null;
        const texts = [
          ...both.map((values, i) => {
            const diverged = [left, right][i].diverged.filter((seed) => seeds.includes(String(seed))).length;
            return (values.length ? number(mean(values), 2) : "") + (diverged ? ` ✗${diverged}` : "");
          }),
          signed === null ? "" : (signed >= 0 ? "+" : "−") + number(Math.abs(signed), 2),
          `${wins}/${seeds.length - wins - losses}/${losses}`,
          String(seeds.length),
        ];
        return el("tr", {}, el("th", { scope: "row", text: left.setting }), ...texts.map((text) => el("td", { text })));
      });
      const names = ["setting", one.label, two.label, "difference", "wins/ties/losses", "seeds"];
      const head = el("tr", {}, ...names.map((text) => el("th", { scope: "col", text })));
      const charts = el("div", { class: "charts" });
      for (const [left, right] of pairs) {
        const lines = [left, right].map((cell, i) => {
          const curve = cell.curves.accuracy || { round: [], mean: [] };
          return { label: i ? two.label : one.label, place: (i ? second : first).selectedIndex, values: curve.mean, low: curve.low, high: curve.high, round: curve.round };
        });
        const longest = lines[0].round.length >= lines[1].round.length ? lines[0].round : lines[1].round;
        if (longest.length) charts.append(flnl.figure(`${left.setting}: test accuracy (%)`, longest, lines));
      }
      const section = el("section", {}, el("h2", { text: table }),
        el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": table },
          el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows))), charts);
      out.append(section);
    }
    document.getElementById("diverged").hidden = !out.textContent.includes("✗");
    const links = [one, two].map((data, i) => el("a", { href: `methods/${(i ? second : first).value}.html`, text: data.label }));
    const summary = document.getElementById("summary");
    summary.replaceChildren(links[0], " and ", links[1], cells ? ` have ${cells} cells in common.` : " have no cell in common.");
  };

  const update = () => {
    const pair = [first.value, second.value];
    history.replaceState(null, "", `#a=${pair[0]}&b=${pair[1]}`);
    Promise.all(pair.map(flnl.load)).then(([one, two]) => {
      if (pair[0] === first.value && pair[1] === second.value) compare(one, two);
    });
  };
  for (const select of [first, second, metric]) select.addEventListener("change", update);
  if (first.options.length) update();
})();
