// Literal text: exactly what a person is asked to allow. Nothing in it is interpreted, and nothing
// can hide: characters that are invisible, change the direction or look like a space are written as
// code points, and long gaps show their length.

import { h } from "./dom.js";
import { counted } from "./time.js";

// Controls, formats, unassigned and private characters, lone surrogates, every space but the plain
// one, and symbols that fonts draw as nothing (U+2800, U+1D159). Tabs and line feeds stay.
const HIDDEN = "(?![ \\n\\t])[\\p{C}\\p{Z}\\p{Default_Ignorable_Code_Point}\\u2800\\u{1D159}]";
// A run of blanks is one piece, so the time is linear in the length of the text.
const PIECE = new RegExp(`(${HIDDEN})|[ \\t\\n]+`, "gu");
// A command behind so many columns or empty lines is easily overlooked.
const WIDE_GAP = 24;
const TALL_GAP = 6;
const TAB_WIDTH = 4;
// Limit of boxes in one text; further characters are written without a box.
const MOST_BOXES = 2000;

/** Returns nodes for a text. @returns {(string | Node)[]} */
export function renderLiteral(text) {
  const nodes = [];
  let from = 0; // start of the text that is not in a node yet
  const add = (start, end, node) => {
    if (start > from) nodes.push(text.slice(from, start));
    nodes.push(node);
    from = end;
  };
  for (const { 0: piece, 1: hidden, index } of text.matchAll(PIECE)) {
    if (hidden !== undefined) {
      add(index, index + piece.length, spellCharacter(hidden, nodes.length < 2 * MOST_BOXES));
      continue;
    }
    let at = index;
    for (const part of splitBlanks(piece)) {
      if (isGap(part)) add(at, at + part.length, markGap(part));
      at += part.length;
    }
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

/** A run of line breaks is one part; otherwise each line is one. */
function splitBlanks(blanks) {
  const lines = blanks.split("\n");
  if (lines.length <= TALL_GAP) return lines.flatMap((line, at) => (at ? ["\n", line] : [line]));
  const last = lines.at(-1);
  return [blanks.slice(0, blanks.length - last.length), last];
}

function isGap(part) {
  if (part.includes("\n")) return part.length > 1;
  const tabs = part.split("\t").length - 1;
  return part.length + tabs * (TAB_WIDTH - 1) >= WIDE_GAP;
}

function spellCharacter(char, isBoxed) {
  const code = `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  if (!isBoxed) return `[${code}]`;
  return h("span", { class: "spelled", title: `Hidden character ${code}` }, code);
}

/** The gap itself stays; its label is drawn by CSS, and is not part of the text. */
function markGap(text) {
  const lines = text.split("\n").length - 1;
  const spaces = !text.includes(" ") ? "tab" : text.includes("\t") ? "blank" : "space";
  const words = lines ? counted(lines, "line break") : counted(text.length, spaces);
  return h("span", { class: "gap", dataset: { gap: words } }, text);
}
