// Icons: lines in a 24 by 24 box, in the colour of the surrounding text. An icon is never the only
// name of a control: the control needs a label.

import { svg } from "../draw/dom.js";

const PATHS = {
  alert: ["M12 4 2.8 19.5h18.4z", "M12 10v4.5", "M12 17v.01"],
  attach: [
    "m20 11.5-8.2 8.2a5 5 0 0 1-7-7l8.9-9a3.4 3.4 0 0 1 4.8 4.8l-8.9 8.9a1.7 1.7 0 0 1-2.4-2.4l8-8",
  ],
  back: ["M14.5 5 7.5 12l7 7"],
  bell: ["M6 16V11a6 6 0 0 1 12 0v5l1.5 2h-15z", "M10 21h4"],
  check: ["m5 12.5 4.5 4.5L19 7.5"],
  chevron: ["m9 6 6 6-6 6"],
  close: ["M6 6l12 12", "M18 6 6 18"],
  copy: ["M9 9h11v11H9z", "M15 9V4H4v11h5"],
  device: ["M7 3h10v18H7z", "M11 18h2"],
  down: ["M12 5v14", "m6 13 6 6 6-6"],
  file: ["M6 3h8l4 4v14H6z", "M14 3v4h4"],
  image: ["M4 5h16v14H4z", "m4 16 5-4 4 3 3-2.5 4 3.5", "M9 9.2v.01"],
  key: [
    "M8 15.5a4.2 4.2 0 1 1 3.6-6.4H21v3.4h-2.5V15h-3v-2.5h-3.6A4.2 4.2 0 0 1 8 15.5z",
    "M8 11.3v.01",
  ],
  machine: ["M4 5h16v11H4z", "M2.5 20h19", "m8 9 2 1.7L8 12.4", "M12 12.5h3"],
  more: ["M5 12v.01", "M12 12v.01", "M19 12v.01"],
  offline: [
    "M3 3l18 18", "M5 12.5a10 10 0 0 1 4-2.3", "M14.5 10a10 10 0 0 1 4.5 2.5",
    "M8.5 16a5 5 0 0 1 7 0", "M12 19.5v.01",
  ],
  plus: ["M12 5v14", "M5 12h14"],
  question: ["M9 9a3 3 0 1 1 4.4 2.6c-.9.5-1.4 1.1-1.4 2.4", "M12 17.5v.01"],
  retry: ["M19.5 12a7.5 7.5 0 1 1-2.2-5.3", "M20 3.5V8h-4.5"],
  search: ["M11 4.5a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13z", "m20 20-4.3-4.3"],
  send: ["M12 20V5", "m5.5 11.5 6.5-6.5 6.5 6.5"],
  settings: [
    "M4 7h9", "M17 7h3", "M4 17h3", "M11 17h9",
    "M15 4.8a2.2 2.2 0 1 1 0 4.4 2.2 2.2 0 0 1 0-4.4z",
    "M9 14.8a2.2 2.2 0 1 1 0 4.4 2.2 2.2 0 0 1 0-4.4z",
  ],
  stop: ["M7 7h10v10H7z"],
  trash: ["M4.5 7h15", "M9 7V4h6v3", "M6.5 7l1 13h9l1-13"],
};

/**
 * @param {keyof PATHS} name
 * @returns {SVGElement} hidden from screen readers
 */
export function icon(name) {
  return drawing(`icon icon-${name}`, 24, PATHS[name].map((d) => svg("path", { d })));
}

/** The crab logo: one colour, for headings and empty views. */
export function crab() {
  return drawing("crab", 64, CRAB.map(([kind, d]) => svg("path", { class: kind, d })));
}

function drawing(name, size, paths) {
  const viewBox = `0 0 ${size} ${size}`;
  return svg("svg", { class: name, viewBox, "aria-hidden": "true", focusable: "false" }, paths);
}

/* Body, claws and legs in the accent colour; the mouth in the colour on top of it. */
const CRAB = [
  ["crab-line", "M18 41 8 45M17 46.5 9.5 53M46 41l10 4M47 46.5 54.5 53"],
  ["crab-line", "M19 32C13 30 11 26 11.5 21M45 32c6-2 8-6 7.5-11M26 29v-6M38 29v-6"],
  ["crab-fill", "M32 28c10.5 0 18 5.5 18 12.5S42.5 54 32 54s-18-6.5-18-13.5S21.5 28 32 28z"],
  ["crab-fill",
    "M11.5 23C5 20 4.5 11 10.5 7.5c.6 3 1.2 5 2.3 7 1.3-2.3 3.2-4.4 5.7-6 2.3 6.5-.6 13-7 14.5z"],
  ["crab-fill",
    "M52.5 23c6.5-3 7-12 1-15.5-.6 3-1.2 5-2.3 7-1.3-2.3-3.2-4.4-5.7-6-2.3 6.5.6 13 7 14.5z"],
  ["crab-fill", "M26 24.5a3.3 3.3 0 1 1 0-6.6 3.3 3.3 0 0 1 0 6.6z"],
  ["crab-fill", "M38 24.5a3.3 3.3 0 1 1 0-6.6 3.3 3.3 0 0 1 0 6.6z"],
  ["crab-mouth", "M26 43.5c3.6 3.3 8.4 3.3 12 0"],
];
