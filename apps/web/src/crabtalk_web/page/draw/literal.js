// Literal text: what a person is asked to allow, exactly as it is. Nothing in it is interpreted, and
// nothing can hide: characters that take no room, turn the text around or only look like a space
// are written out by their numbers, and long gaps say how long they are.

import { h } from "./dom.js";
import { counted } from "./time.js";

// Controls, formats, unassigned and private characters, lone surrogates, every space but the plain
// one, and all that fonts draw as nothing. Tabs and line feeds are what they are.
const HIDDEN = "(?![ \\n\\t])[\\p{C}\\p{Z}\\p{Default_Ignorable_Code_Point}]";
// A command behind so many spaces or empty lines is easily overlooked.
const GAP = " {24,}|\\t{6,}|(?:[ \\t]*\\n){6,}";
const EITHER = new RegExp(`(${HIDDEN})|${GAP}`, "gu");
// Boxes in one text; further characters are written out without one.
const MOST_BOXES = 2000;

/** Nodes for a text. @returns {(string | Node)[]} */
export function literal(text) {
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(EITHER)) {
    if (found.index > at) nodes.push(text.slice(at, found.index));
    const isBoxed = nodes.length < 2 * MOST_BOXES;
    nodes.push(found[1] === undefined ? gap(found[0]) : spelled(found[1], isBoxed));
    at = found.index + found[0].length;
  }
  if (at < text.length) nodes.push(text.slice(at));
  return nodes;
}

function spelled(char, isBoxed) {
  const code = `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  if (!isBoxed) return `[${code}]`;
  return h("span", { class: "spelled", title: `Hidden character ${code}` }, code);
}

/** The gap itself stays; what is said of it is drawn, and is no part of the text. */
function gap(text) {
  const lines = text.split("\n").length - 1;
  const spaces = text[0] === "\t" ? "tab" : "space";
  const words = lines ? counted(lines, "line break") : counted(text.length, spaces);
  return h("span", { class: "gap", dataset: { gap: words } }, text);
}
