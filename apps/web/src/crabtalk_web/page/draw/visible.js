// Makes characters visible that hide or reorder other text: control characters, direction marks and
// invisible letters. The characters stay in the document, each isolated in a box, so that copied
// text is the original.

import { h } from "./dom.js";

// Direction overrides and embeddings, tags, and controls except tab and line feed.
const CONTROLS = "\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\ufff9-\\ufffb";
const TURNING = "\\u202a-\\u202e\\u2066-\\u2069";
const TAGS = "[\\u{e0000}-\\u{e007f}]";
// In code also everything without width.
const NARROW = "\\u00ad\\u061c\\u200b-\\u200f\\u2060-\\u2065\\ufeff";
const HIDDEN = new RegExp(`[${CONTROLS}${TURNING}]|${TAGS}`, "u");
const HIDDEN_IN_CODE = new RegExp(`[${CONTROLS}${TURNING}${NARROW}]|${TAGS}`, "u");
// Beyond this many marks in one text only their number is shown.
const MOST = 500;

const all = (pattern) => new RegExp(pattern.source, "gu");
const [EACH, EACH_IN_CODE] = [all(HIDDEN), all(HIDDEN_IN_CODE)];

/** Returns nodes for a text. @returns {(string | Node)[]} */
export function visible(text, { isCode = false } = {}) {
  if (!(isCode ? HIDDEN_IN_CODE : HIDDEN).test(text)) return [text];
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(isCode ? EACH_IN_CODE : EACH)) {
    if (nodes.length > 2 * MOST) break;
    if (found.index > at) nodes.push(text.slice(at, found.index));
    if (found[0] !== "\r") nodes.push(mark(found[0]));
    at = found.index + found[0].length;
  }
  if (at < text.length) nodes.push(nodes.length > 2 * MOST ? rest(text.slice(at)) : text.slice(at));
  return nodes;
}

function mark(char) {
  const code = char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return h(
    "span",
    { class: "hidden-character", "data-code": code, title: `Hidden character U+${code}` },
    char,
  );
}

// With so many marks it is not real text: the rest goes into one box that isolates its direction.
function rest(text) {
  return h("span", { class: "hidden-characters" }, text);
}

/** Returns one line for a label, without hidden characters. */
export function plainLabel(text) {
  return text.replace(EACH_IN_CODE, "").replace(/\s+/g, " ").trim();
}
