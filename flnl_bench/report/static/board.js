// The leaderboard: all numbers are computed from the runs that pass the filters.
"use strict";

(function () {
  const { el, number, mean, deviation } = flnl;
  const board = JSON.parse(document.getElementById("board").textContent);
  const metrics = Object.fromEntries(board.metrics.map((metric, i) => [metric.name, { ...metric, column: 4 + i }]));
  const unique = (values) => [...new Set(values)];
  const allRuns = board.tables.flatMap((table) => table.rows.flatMap((row) => row.runs));
  const choices = {
    dataset: unique(board.tables.map((table) => table.dataset)),
    partition: unique(board.tables.map((table) => table.partition)),
    preset: unique(board.tables.map((table) => table.preset)),
    setting: unique(board.tables.flatMap((table) => table.settings)),
    method: Object.keys(board.labels),
    seed: unique(allRuns.map((run) => String(run[1]))).sort((a, b) => a - b),
  };
  const words = { dataset: "Data sets", partition: "Partitions", preset: "Presets", setting: "Settings", method: "Methods", seed: "Seeds" };
  const usable = board.metrics.filter((metric) => allRuns.some((run) => run[metrics[metric.name].column] !== null));
  const hasPaper = board.tables.some((table) => table.rows.some((row) => Object.values(row.paper).some((cells) => Object.keys(cells).length)));
  const state = { metric: "last10", paper: false, hidden: {}, sort: {} };
  for (const what of Object.keys(choices)) state.hidden[what] = new Set();

  // -- the address contains the filters, so that a view can be sent as a link -----------------------
  const read = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (usable.some((metric) => metric.name === asked.get("metric"))) state.metric = asked.get("metric");
    state.paper = asked.get("paper") === "1" && hasPaper;
    for (const what of Object.keys(choices)) {
      state.hidden[what] = new Set(asked.getAll(`without-${what}`).filter((name) => choices[what].includes(name)));
    }
  };
  const write = () => {
    const kept = new URLSearchParams();
    if (state.metric !== "last10") kept.set("metric", state.metric);
    if (state.paper) kept.set("paper", "1");
    for (const [what, names] of Object.entries(state.hidden)) for (const name of names) kept.append(`without-${what}`, name);
    history.replaceState(null, "", kept.toString() ? `#${kept}` : location.pathname + location.search);
  };

  // -- filters ---------------------------------------------------------------------------------------
  const fields = document.getElementById("fields");
  const select = el("select", { id: "metric", onchange: (event) => { state.metric = event.target.value; update(); } },
    ...usable.map((metric) => el("option", { value: metric.name, text: `${metric.name}: ${metric.help}` })));
  const paper = el("input", { type: "checkbox", id: "paper", onchange: (event) => { state.paper = event.target.checked; update(); } });
  const summaries = {}, boxes = {};
  const build = () => {
    fields.append(el("label", { class: "wide" }, "Metric", select));
    for (const [what, names] of Object.entries(choices)) {
      boxes[what] = names.map((name) => el("input", { type: "checkbox", value: name, onchange: (event) => {
        if (event.target.checked) state.hidden[what].delete(name);
        else state.hidden[what].add(name);
        update();
      } }));
      summaries[what] = el("summary");
      const set = (on) => () => { state.hidden[what] = new Set(on ? [] : names); update(); };
      fields.append(el("details", { class: "filter", "data-filter": what }, summaries[what],
        el("fieldset", {}, el("legend", { class: "hidden", text: words[what] }),
          el("p", { class: "row" }, el("button", { type: "button", class: "quiet", text: "All", onclick: set(true) }),
            el("button", { type: "button", class: "quiet", text: "None", onclick: set(false) })),
          ...boxes[what].map((box) => el("label", {}, box, box.value)))));
    }
    if (hasPaper) fields.append(el("label", { class: "check" }, paper, "The paper's numbers"));
    document.getElementById("reset").addEventListener("click", () => {
      Object.assign(state, { metric: "last10", paper: false, sort: {} });
      for (const names of Object.values(state.hidden)) names.clear();
      update();
    });
  };
  // An open filter covers the table: a click or the focus outside closes it.
  const close = (inside) => {
    for (const filter of fields.querySelectorAll("details[open]")) if (!inside || !filter.contains(inside)) filter.open = false;
  };
  addEventListener("click", (event) => close(event.target));
  addEventListener("focusin", (event) => close(event.target));
  addEventListener("keydown", (event) => {
    const filter = event.key === "Escape" && fields.querySelector("details[open]");
    if (filter) filter.querySelector("summary").focus();
    if (filter) close(null);
  });
  const show = () => {
    select.value = state.metric;
    paper.checked = state.paper;
    for (const [what, names] of Object.entries(choices)) {
      const left = names.length - state.hidden[what].size;
      summaries[what].textContent = `${words[what]} (${left === names.length ? "all" : `${left} of ${names.length}`})`;
      for (const box of boxes[what]) box.checked = !state.hidden[what].has(box.value);
    }
  };

  // -- numbers ---------------------------------------------------------------------------------------
  const shown = (value, digits) => Number(value.toFixed(digits));
  const overSeeds = (values, diverged) => ({ mean: mean(values), std: deviation(values), count: values.length, diverged });
  // A diverged run ranks below all others.
  const score = (cell, sign, digits) => (cell.diverged.length ? -Infinity : shown(sign * cell.mean, digits));

  const cellsOf = (row, column) => {
    const cells = {};
    for (const run of row.runs) {
      const kept = !state.hidden.setting.has(run[0]) && !state.hidden.seed.has(String(run[1]));
      if (kept && run[column] !== null) (cells[run[0]] ||= {})[run[1]] = run[column];
    }
    return cells;
  };

  // The mean over settings; its deviation is that of the per-seed means, if all have the same seeds.
  const average = (cells, over, diverged) => {
    if (!over.every((setting) => cells[setting])) return null;
    const seeds = Object.keys(cells[over[0]]);
    const alike = over.every((setting) => Object.keys(cells[setting]).join() === seeds.join());
    if (alike) return overSeeds(seeds.map((seed) => mean(over.map((setting) => cells[setting][seed]))), diverged);
    const all = over.map((setting) => Object.values(cells[setting]));
    return { mean: mean(all.map(mean)), std: null, count: Math.min(...all.map((values) => values.length)), diverged };
  };

  const compute = (table) => {
    const metric = metrics[state.metric], sign = metric.higher ? 1 : -1;
    const rows = table.rows
      .filter((row) => !state.hidden.method.has(row.label))
      .map((row) => ({ row, values: cellsOf(row, metric.column) }))
      .filter(({ values }) => Object.keys(values).length);
    const settings = table.settings.filter((setting) => rows.some(({ values }) => values[setting]));
    const scored = table.scored.filter((setting) => settings.includes(setting));
    const over = scored.length ? scored : settings;
    const lines = rows.map(({ row, values }) => {
      const cells = {};
      const diverged = (names) => unique(row.runs.filter((run) => run[3] && names.includes(run[0]) && String(run[1]) in values[run[0]]).map((run) => run[1]));
      const complete = over.every((setting) => values[setting]);
      for (const [setting, seeds] of Object.entries(values)) cells[setting] = overSeeds(Object.values(seeds), diverged([setting]));
      if (over.length > 1 && complete) cells.Avg = average(values, over, diverged(over));
      return { row, cells, complete, diverged: complete ? diverged(over) : [] };
    });
    const ranked = lines.filter((line) => line.complete);
    for (const line of lines) line.rank = null;
    for (const line of ranked) {
      line.rank = mean(over.map((setting) => {
        const value = (l) => score(l.cells[setting], sign, metric.digits);
        const own = value(line);
        return 1 + ranked.filter((l) => value(l) > own).length + (ranked.filter((l) => value(l) === own).length - 1) / 2;
      }));
    }
    return { metric, sign, settings, over, lines };
  };

  // Only numbers over the most seeds compete; none is second next to two best, and the last is never second.
  const marks = ({ metric, sign, lines }, column) => {
    const most = Math.max(0, ...lines.map((line) => (line.cells[column] ? line.cells[column].count : 0)));
    const values = lines.map((line) => (line.cells[column] && line.cells[column].count === most ? score(line.cells[column], sign, metric.digits) : null));
    const known = values.filter((value) => value !== null);
    const places = unique(known).sort((a, b) => b - a);
    const best = known.length > 1 && places[0] > -Infinity ? places[0] : null;
    const second = places.length > 2 && known.filter((value) => value === places[0]).length === 1 && places[1] > -Infinity ? places[1] : null;
    return values.map((value) => (value === null ? "" : value === best ? "best" : value === second ? "second" : ""));
  };

  // -- tables ----------------------------------------------------------------------------------------
  const key = (line, column) => {
    if (column === "method") return line.row.label;
    if (column === "rank") return line.rank;
    if (column === board.columns.place || column === board.columns.first) {
      if (!line.standing) return null;
      return column === board.columns.place ? line.standing[0] + line.standing[1] / 1000 : line.standing[2];
    }
    return line.cells[column] ? line.cells[column].mean : null;
  };
  const sorted = (view, sort) => {
    if (!sort) { // by Avg; rows without it and diverged ones come last
      const main = (line) => line.complete && (line.cells.Avg || line.cells[view.over[0]]);
      const value = (line) => (main(line) ? score(main(line), view.sign, 9) : null);
      return [...view.lines].sort((a, b) => (value(a) === null) - (value(b) === null) || (value(a) === value(b) ? 0 : value(b) - value(a)));
    }
    const direction = sort.direction === "ascending" ? 1 : -1;
    return [...view.lines].sort((a, b) => {
      const [x, y] = [key(a, sort.column), key(b, sort.column)];
      if (x === null || y === null) return (x === null) - (y === null); // missing numbers come last
      return direction * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
  };
  const header = (view, number, column) => {
    const sort = state.sort[number];
    const here = sort && sort.column === column;
    const click = () => {
      const first = column === "method" || column === "rank" || !view.metric.higher ? "ascending" : "descending";
      const other = first === "ascending" ? "descending" : "ascending";
      state.sort[number] = { column, direction: here && sort.direction === first ? other : first };
      draw();
      document.querySelector(`[data-sort="${number}:${CSS.escape(column)}"]`).focus();
    };
    const arrow = here ? (sort.direction === "ascending" ? " ▲" : " ▼") : "";
    return el("th", { scope: "col", "aria-sort": here ? sort.direction : "none" },
      el("button", { type: "button", class: "sort", "data-sort": `${number}:${column}`, onclick: click }, column,
        el("span", { "aria-hidden": "true", text: arrow })));
  };
  const cell = (numbers, mark, digits, most) => {
    if (!numbers) return el("td");
    const inner = [number(numbers.mean, digits)];
    if (numbers.std !== null && numbers.std !== undefined) inner.push(el("small", { text: ` ± ${number(numbers.std, digits)}` }));
    const content = el(mark === "best" ? "b" : mark === "second" ? "u" : "span", {}, ...inner);
    const flags = [numbers.count < most ? `†${numbers.count}` : null, numbers.diverged.length ? `✗${numbers.diverged.length}` : null];
    return el("td", {}, content, ...flags.filter((flag) => flag).map((flag) => el("sup", { text: flag })));
  };
  const paperRow = (line, columns, over) => {
    const theirs = line.row.paper[state.metric] || {};
    const has = (name) => theirs[name] || null;
    if (!columns.some(has)) return [];
    const value = (name) => {
      if (name !== "Avg") return has(name) ? { mean: theirs[name][0], std: theirs[name][1], count: 99, diverged: [] } : null;
      return over.every(has) ? { mean: mean(over.map((setting) => theirs[setting][0])), std: null, count: 99, diverged: [] } : null;
    };
    const cells = columns.map((name) => (name === "rank" ? el("td") : cell(value(name), "", 2, 0)));
    return [el("tr", { class: "paper below" }, el("th", { scope: "row", text: "the paper" }), ...cells)];
  };
  const tableOf = (table, number_) => {
    const view = compute(table);
    if (!view.lines.length) return null;
    // Places are of the whole table: a filter would change them.
    const whole = ["setting", "method", "seed"].every((what) => !state.hidden[what].size);
    const standings = (whole && table.standings[state.metric]) || {};
    const { place: PLACE, first: FIRST } = board.columns;
    for (const line of view.lines) line.standing = standings[line.row.label];
    const placed = Object.keys(standings).length ? [PLACE, FIRST] : [];
    const columns = [...view.settings, ...(view.over.length > 1 ? ["Avg"] : []), "rank", ...placed];
    const marked = Object.fromEntries(columns.map((column) => [column, marks(view, column)]));
    const bestRank = Math.min(...view.lines.filter((line) => line.rank !== null && !line.diverged.length).map((line) => line.rank));
    const most = Math.max(...view.lines.flatMap((line) => Object.values(line.cells).map((c) => (c ? c.count : 0))));
    const body = sorted(view, state.sort[number_]).flatMap((line) => {
      const place = view.lines.indexOf(line);
      const entries = columns.map((column) => {
        const { standing } = line;
        if (column === PLACE) return el("td", { text: standing ? `${standing[0]}${standing[1] > standing[0] ? `–${standing[1]}` : ""} ${standing[3]}`.trim() : "" });
        if (column === FIRST) return el("td", { text: standing ? standing[2].toFixed(2) : "" });
        if (column !== "rank") return cell(line.cells[column], marked[column][place], view.metric.digits, most);
        if (line.rank === null) return el("td");
        const best = view.lines.length > 1 && line.rank === bestRank && !line.diverged.length;
        const tied = view.lines.filter((l) => l.rank !== null && l.rank.toFixed(2) === line.rank.toFixed(2)).length > 1;
        return el("td", {}, el(best ? "b" : "span", { text: line.rank.toFixed(2) }), tied ? el("sup", { text: "=" }) : null, line.diverged.length ? el("sup", { text: `✗${line.diverged.length}` }) : null);
      });
      const link = el("a", { href: `methods/${board.labels[line.row.label]}.html`, text: line.row.label });
      const mark = line.row.own ? `${board.columns.own} ` : "";
      const own = el("tr", {}, el("th", { scope: "row" }, mark, link), ...entries);
      return [own, ...(state.paper ? paperRow(line, columns, view.over) : [])];
    });
    const detectable = (whole && table.detectable[state.metric]) || {};
    if (Object.keys(detectable).length) body.push(el("tr", { class: "below" }, el("th", { scope: "row", text: "detectable" }),
      ...columns.map((column) => el("td", { text: column in detectable ? number(detectable[column], view.metric.digits) : "" }))));
    const parts = [el("h2", { text: table.title }), el("p", { text: `${table.line}.` })];
    for (const text of table.alarms) parts.push(el("p", { class: "alarm", text: `⚠ ${text}` }));
    const compared = state.paper && table.rows.some((row) => Object.keys(row.paper[state.metric] || {}).length);
    if (compared) parts.push(el("p", { class: table.paper.comparable ? "" : "alarm", text: table.paper.text }));
    const head = el("tr", {}, header(view, number_, "method"), ...columns.map((column) => header(view, number_, column)));
    parts.push(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": table.title },
      el("table", {}, el("caption", { class: "hidden", text: `${table.title}, ${view.metric.help}` }), el("thead", {}, head), el("tbody", {}, ...body))));
    const help = view.metric.help[0].toUpperCase() + view.metric.help.slice(1);
    const notes = [`${help}; ${view.metric.higher ? "higher" : "lower"} is better. Rank${view.over.length > 1 ? " and Avg" : ""}: over ${view.over.join(", ")}.`];
    if (view.lines.some((line) => Object.values(line.cells).some((c) => c && c.count < most))) notes.push(`†n: over n seeds instead of ${most}.`);
    if (view.lines.some((line) => Object.values(line.cells).some((c) => c && c.diverged.length))) notes.push(board.diverged);
    if (whole && state.metric in table.standings) notes.push(...table.resolution);
    if (view.lines.some((line) => line.rank !== null && view.lines.filter((l) => l.rank === line.rank).length > 1)) notes.push("=: the same rank as another row.");
    if (view.lines.some((line) => line.row.own)) notes.push(`${board.columns.own}: not a method of this package.`);
    if (table.order && (state.metric === "last10")) notes.push(
      `Order of the methods against the paper's (${table.order.of}, all runs, mean of ${table.order.cells} cells): Spearman ${number(table.order.spearman, 2)}, Kendall ${number(table.order.kendall, 2)}.`);
    parts.push(el("p", { class: "note", text: notes.join(" ") }));
    return el("section", { "data-table": number_ }, ...parts);
  };
  const out = document.getElementById("tables");
  const draw = () => {
    const kept = board.tables.map((table, i) => [table, i]).filter(([table]) => ["dataset", "partition", "preset"].every((what) => !state.hidden[what].has(table[what])));
    const sections = kept.map(([table, i]) => tableOf(table, i)).filter((section) => section);
    out.replaceChildren(...(sections.length ? sections : [el("p", { text: "No run is left." })]));
    document.getElementById("count").textContent = `${sections.length} of ${board.tables.length} tables`;
  };
  const update = () => { show(); write(); draw(); };

  build();
  read();
  addEventListener("hashchange", () => { read(); update(); });
  update();
})();
