// Charts of a method's page and of a run's page. A method is drawn next to FedAvg and the control, setting by setting.
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
  const { method, references } = document.body.dataset;
  if (!method) return;
  const slugs = [method, ...references.split(" ").filter((slug) => slug)];
  Promise.all(slugs.map((slug) => flnl.load(slug))).then((loaded) => {
    for (const place of document.querySelectorAll(".charts[data-table]")) {
      const cells = (item) => item.cells.filter((cell) => cell.table === place.dataset.table);
      for (const [name, title] of Object.entries(flnl.titles)) {
        if (name === "loss") continue;
        for (const own of cells(loaded[0]).filter((cell) => cell.curves[name])) {
          const lines = loaded.flatMap((item, number) => {
            const cell = cells(item).find((other) => other.setting === own.setting && other.curves[name]);
            if (!cell) return [];
            const { mean, low, high } = cell.curves[name];
            return [{ label: item.label, place: number, values: mean, ...(number ? {} : { low, high }) }];
          });
          place.append(flnl.figure(`${title}, ${own.setting}`, own.curves[name].round, lines));
        }
      }
    }
  });
})();
