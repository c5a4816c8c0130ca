// A page with nothing but rows, under the policy of the real one. Tests use the modules through
// `rows`, and put elements into #rows.

import * as addresses from "/draw/addresses.js";
import * as ansi from "/draw/ansi.js";
import * as blocks from "/draw/blocks.js";
import * as changes from "/draw/changes.js";
import * as code from "/draw/code.js";
import * as diff from "/draw/diff.js";
import * as dom from "/draw/dom.js";
import * as inlines from "/draw/inlines.js";
import * as languages from "/draw/languages.js";
import * as markdown from "/draw/markdown.js";
import * as qr from "/draw/qr.js";
import * as thumbhash from "/draw/thumbhash.js";
import * as time from "/draw/time.js";
import * as visible from "/draw/visible.js";
import * as shell from "/rows/shell.js";
import * as all from "/rows/rows.js";

const shelf = document.getElementById("rows");
const copied = [];
const announced = [];
const opened = [];
const asked = [];

const files = new Map();
const session = {
  file: async (row, { onProgress } = {}) => {
    onProgress?.(0.5);
    const found = files.get(row.ref);
    if (!found) throw new Error("The file is not there any more.");
    return found;
  },
  retry: (id) => asked.push(["retry", id]),
  discard: (id) => asked.push(["discard", id]),
};
const context = {
  session,
  copy: async (text) => { copied.push(text); },
  announce: (text) => announced.push(text),
  openFile: (row) => opened.push(row.id),
};

/** Shows one row, or several, instead of the current ones. */
function show(...rows) {
  const elements = rows.map((row) => {
    const element = all.renderRow(row, context);
    return dom.h("div", { class: "entry", dataset: { kind: row.kind } }, element);
  });
  shelf.replaceChildren(...elements);
  return elements.map((element) => element.firstElementChild);
}

/** Resets the gallery: recorded calls and requests are forgotten. */
function renew() {
  shelf.replaceChildren();
  for (const list of [announced, asked, copied, opened]) list.length = 0;
  files.clear();
  document.activeElement?.blur();
  scrollTo(0, 0);
  return true;
}

async function picture(ref, width, height) {
  const canvas = new OffscreenCanvas(width, height);
  const paint = canvas.getContext("2d");
  const sky = paint.createLinearGradient(0, 0, 0, height);
  sky.addColorStop(0, "#f0b080");
  sky.addColorStop(1, "#204060");
  paint.fillStyle = sky;
  paint.fillRect(0, 0, width, height);
  paint.fillStyle = "#fff8e0";
  paint.beginPath();
  paint.arc(width * 0.7, height * 0.3, height * 0.12, 0, 7);
  paint.fill();
  files.set(ref, await canvas.convertToBlob({ type: "image/png" }));
}

/** Summarizes an element: (tag …) with texts in quotes, and link targets. */
function outline(node) {
  if (node.nodeType === Node.TEXT_NODE) return JSON.stringify(node.data);
  const inner = [...node.childNodes].map(outline).join(" ");
  const name = node.localName === "a" ? `a ${node.getAttribute("href")}` : node.localName;
  return inner ? `(${name} ${inner})` : `(${name})`;
}

const drawn = (text, options) => outline(markdown.renderMarkdown(text, options));

globalThis.rows = {
  addresses, all, announced, ansi, asked, blocks, changes, code, context, copied, diff, dom, files,
  drawn, inlines, languages, markdown, opened, outline, picture, qr, renew, shelf, shell,
  show, thumbhash, time, visible,
};
document.documentElement.dataset.ready = "true";
