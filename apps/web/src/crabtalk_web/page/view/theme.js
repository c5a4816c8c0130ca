// The chosen theme: system, light or dark. theme.js beside app.js applies it early.

const KEY = "theme";
const BARS = { light: "#faf8f6", dark: "#171513" };
const isDark = matchMedia("(prefers-color-scheme: dark)");

export const THEMES = [
  { id: "system", label: "As the system" },
  { id: "light", label: "Light" },
  { id: "dark", label: "Dark" },
];

export function chosenTheme() {
  const chosen = localStorage.getItem(KEY);
  return chosen === "light" || chosen === "dark" ? chosen : "system";
}

export function chooseTheme(id) {
  if (id === "system") {
    localStorage.removeItem(KEY);
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem(KEY, id);
    document.documentElement.dataset.theme = id;
  }
  colourTheBar();
}

/** The browser's bar has the page's colour, also when the system theme changes. */
export function followTheme() {
  isDark.addEventListener("change", colourTheBar);
  colourTheBar();
}

function colourTheBar() {
  const chosen = chosenTheme();
  const shown = chosen === "system" ? (isDark.matches ? "dark" : "light") : chosen;
  document.querySelector('meta[name="theme-color"]')?.setAttribute("content", BARS[shown]);
}
