// Charts of a method's page (one per number and table, a line per setting) and of a run's page.
"use strict";

(function () {
  const data = document.getElementById("curves");
  if (data) {
    const { round, curves } = JSON.parse(data.textContent);
    for (const [name, values] of Object.entries(curves)) {
      const lines = [{ label: "value", place: 0, values }];
      document.getElementById("charts").append(flnl.figure(flnl.titles[name], round, lines));
    }
  }
  const slug = document.body.dataset.method;
  if (slug) flnl.load(slug).then(({ cells }) => {
    for (const place of document.querySelectorAll(".charts[data-table]")) {
      const here = cells.filter((cell) => cell.table === place.dataset.table);
      for (const [name, title] of Object.entries(flnl.titles)) {
        const known = here.filter((cell) => cell.curves[name]);
        if (!known.length || name === "loss") continue;
        const lines = known.map((cell) => {
          const { mean, low, high } = cell.curves[name];
          return { label: cell.setting, place: here.indexOf(cell), values: mean, low, high };
        });
        place.append(flnl.figure(title, known[0].curves[name].round, lines));
      }
    }
  });
})();
