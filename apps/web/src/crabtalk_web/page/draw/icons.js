// Small icons beside text, in the colour of the text. They never carry information that the text
// does not have.

import { svg } from "./dom.js";

// Paths in a box of 24 by 24.
const PATHS = {
  terminal: "M4 6l5 5-5 5M12 17h8",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  search: "M11 4a7 7 0 1 0 0 14a7 7 0 1 0 0-14M16 16l5 5",
  globe: "M12 3a9 9 0 1 0 0 18a9 9 0 1 0 0-18M3 12h18M12 3c3 3 3 15 0 18M12 3c-3 3-3 15 0 18",
  task: "M6 4v10a4 4 0 0 0 4 4h8M14 14l4 4-4 4M6 8h12",
  question: "M9 9a3 3 0 1 1 4 3c-1 .6-1 1-1 2M12 18v.5",
  memory: "M6 3h12v18l-6-4-6 4z",
  tool: "M14 6a4 4 0 0 1 5 5l-9 9-4-4 9-9zM16 4l4 4",
  thought: "M8 18a5 5 0 0 1-1-10a6 6 0 0 1 11 1a4.5 4.5 0 0 1-1 9z",
  chevron: "M9 6l6 6-6 6",
  check: "M5 12l5 5L19 7",
  cross: "M6 6l12 12M18 6L6 18",
  stop: "M7 7h10v10H7z",
  picture: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15 9v.5",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  clock: "M12 4a8 8 0 1 0 0 16a8 8 0 1 0 0-16M12 8v4l3 2",
  alert: "M12 4l9 16H3zM12 10v4M12 17v.5",
};

export function icon(name) {
  return svg("svg", {
    class: `icon icon-${name}`,
    viewBox: "0 0 24 24",
    width: "16",
    height: "16",
    fill: "none",
    stroke: "currentColor",
    "stroke-width": "1.8",
    "stroke-linecap": "round",
    "stroke-linejoin": "round",
    "aria-hidden": "true",
    focusable: "false",
  }, svg("path", { d: PATHS[name] ?? PATHS.tool }));
}
