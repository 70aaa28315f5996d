// Before anything is drawn, so that a page does not flash: the theme that was chosen here last.
(function () {
  "use strict";
  try {
    const chosen = localStorage.getItem("flnl-theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch (refused) {
    // A browser that keeps nothing for files: the system's choice holds.
  }
})();
