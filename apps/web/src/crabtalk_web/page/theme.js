// The chosen theme, before anything is drawn: a dark page must not flash white.
// A classic script, because modules wait until the document is there.

(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
