// Shared by all pages: elements without markup from strings, the theme, charts, data of methods.
"use strict";

const flnl = {
  above: document.body.dataset.above,
  titles: JSON.parse(document.getElementById("titles").textContent),
  methods: {}, // data by slug, from data/*.js
  waiting: {},
  charts: [],

  el(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "text") element.textContent = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  },

  take(slug, data) {
    flnl.methods[slug] = data;
    (flnl.waiting[slug] || []).forEach((tell) => tell(data));
    delete flnl.waiting[slug];
  },

  // The data of a method: a script of the site, because pages from disk may not fetch.
  load(slug) {
    if (flnl.methods[slug]) return Promise.resolve(flnl.methods[slug]);
    return new Promise((resolve) => {
      if (!flnl.waiting[slug]) {
        flnl.waiting[slug] = [];
        document.head.append(flnl.el("script", { src: `${flnl.above}data/${slug}.js` }));
      }
      flnl.waiting[slug].push(resolve);
    });
  },

  number(value, digits) {
    return value === null || value === undefined ? "" : value.toFixed(digits);
  },

  mean(values) {
    return values.reduce((sum, value) => sum + value, 0) / values.length;
  },

  deviation(values) {
    if (values.length < 2) return null;
    const middle = flnl.mean(values);
    return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
  },
};

// -- theme -----------------------------------------------------------------------------------------
flnl.dark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

(function () {
  const button = document.getElementById("theme");
  const tell = () => {
    button.textContent = flnl.dark() ? "Light theme" : "Dark theme";
    flnl.charts.forEach((draw) => draw());
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    const theme = flnl.dark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("flnl-theme", theme);
    } catch (refused) {
      // The choice is valid for this page only.
    }
    tell();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
  tell();
})();

// -- charts ----------------------------------------------------------------------------------------
// Okabe and Ito's colours, which are safe for colour-blind readers; then other dashes.
flnl.colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1"];
flnl.dashes = [[], [8, 4], [2, 3]];

flnl.style = (place) => ({
  stroke: flnl.colours[place % flnl.colours.length],
  dash: flnl.dashes[Math.floor(place / flnl.colours.length) % flnl.dashes.length],
});

// A figure of lines over rounds: lines are {label, place, values, low, high}, `place` gives the colour.
flnl.figure = (title, rounds, lines) => {
  const box = flnl.el("div", { role: "img", "aria-label": `${title} by round, for ${lines.map((l) => l.label).join(", ")}` });
  const figure = flnl.el("figure", {}, flnl.el("figcaption", { text: title }), box);
  let plot = null;
  const draw = () => {
    if (plot) plot.destroy();
    const css = getComputedStyle(document.documentElement);
    const ink = css.getPropertyValue("--ink"), rule = css.getPropertyValue("--rule");
    const axis = { stroke: ink, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule }, font: "12px system-ui" };
    const series = [{ label: "round" }], data = [rounds], bands = [];
    for (const line of lines) {
      const style = flnl.style(line.place);
      const show = (u, value) => (value === null || value === undefined ? "–" : value.toFixed(Math.abs(value) < 2 ? 3 : 1));
      series.push({ label: line.label, width: 2, ...style, value: show, points: { show: rounds.length === 1 } });
      data.push(line.values);
      if (line.low && line.low.some((low, i) => low !== line.high[i])) {
        for (const edge of [line.high, line.low]) {
          series.push({ label: "", stroke: "transparent", width: 0, points: { show: false }, value: () => "" });
          data.push(edge);
        }
        bands.push({ series: [series.length - 2, series.length - 1], fill: `${style.stroke}33` });
      }
    }
    const options = {
      width: Math.max(240, figure.clientWidth || 480),
      height: 230,
      scales: { x: { time: false } },
      axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }, { ...axis, size: 48 }],
      cursor: { points: { show: false }, drag: { x: false, y: false } },
      series, bands,
      // Without a pointer the legend has the numbers of the last round.
      hooks: { setLegend: [(u) => { if (u.legend.idx === null || u.legend.idx === undefined) u.setLegend({ idx: rounds.length - 1 }, false); }] },
    };
    plot = new uPlot(options, data, box);
    plot.setLegend({ idx: rounds.length - 1 }, false);
    // The edges of bands need no legend, and a legend must be usable without a mouse.
    box.querySelectorAll(".u-legend .u-series").forEach((row, i) => {
      if (i && series[i].label === "") row.remove();
      const name = row.querySelector("th");
      if (!i || !name) return;
      name.tabIndex = 0;
      name.setAttribute("role", "button");
      name.setAttribute("aria-label", `Show or hide ${series[i].label}`);
      name.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          name.click();
        }
      });
    });
  };
  flnl.charts.push(draw);
  let width = 0;
  new ResizeObserver(() => {
    if (figure.clientWidth && figure.clientWidth !== width) {
      width = figure.clientWidth;
      draw();
    }
  }).observe(figure);
  return figure;
};
