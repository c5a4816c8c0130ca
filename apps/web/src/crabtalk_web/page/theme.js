// Applies the chosen theme before anything is drawn, so that a dark page does not flash white. A
// classic script, because modules wait for the document.

(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
