// Terminal output: colours become classes, other control sequences are removed, and an overwritten
// line shows only its last content.

import { h } from "./dom.js";
import { visible } from "./visible.js";

// Colours and styles; other control sequences; remains of broken ones.
const SEQUENCE =
  /\u001b\[([\d;:]{0,100})m|[\u001b\u009b]\[?[\d;:?<=>!]{0,100}[ -/]{0,4}[@-~]|[\u001b\u009b]/g;
// Sequences that contain a text, such as titles and links, up to their end.
const STRINGS = /\u001b[\]PX^_][^\u0007\u001b]{0,4000}(?:\u0007|\u001b\\)?/g;

const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

const PLAIN = { color: "", isBold: false, isDim: false, isUnderlined: false };

/** Returns nodes for an output. */
export function terminal(text) {
  const clean = overwritten(text).replace(STRINGS, "");
  if (!/[\u001b\u009b]/.test(clean)) return visible(clean, { isCode: true });
  const nodes = [];
  let style = PLAIN;
  let at = 0;
  for (const found of clean.matchAll(SEQUENCE)) {
    nodes.push(...piece(clean.slice(at, found.index), style));
    if (found[1] !== undefined) style = styled(style, found[1]);
    at = found.index + found[0].length;
  }
  nodes.push(...piece(clean.slice(at), style));
  return nodes;
}

/** Returns the same without colours, for copying. */
export function terminalText(text) {
  return overwritten(text).replace(STRINGS, "").replace(SEQUENCE, "");
}

function piece(text, style) {
  if (!text) return [];
  const nodes = visible(text, { isCode: true });
  const names = [
    style.color && `ansi-${style.color}`,
    style.isBold && "ansi-bold",
    style.isDim && "ansi-dim",
    style.isUnderlined && "ansi-underlined",
  ].filter(Boolean);
  return names.length ? [h("span", { class: names.join(" ") }, nodes)] : nodes;
}

function styled(before, codes) {
  const style = { ...before };
  const numbers = codes.split(/[;:]/).map(Number);
  for (let at = 0; at < numbers.length; at += 1) {
    const code = numbers[at];
    if (code === 0) Object.assign(style, PLAIN);
    else if (code === 1) style.isBold = true;
    else if (code === 2) style.isDim = true;
    else if (code === 4) style.isUnderlined = true;
    else if (code === 22) Object.assign(style, { isBold: false, isDim: false });
    else if (code === 24) style.isUnderlined = false;
    else if (code >= 30 && code <= 37) style.color = NAMES[code - 30];
    else if (code >= 90 && code <= 97) style.color = NAMES[code - 90];
    else if (code === 39) style.color = "";
    else if (code === 38 || code === 48) at += skipped(numbers, at, style);
  }
  return style;
}

// Of 256 colours the first sixteen have names; the others are drawn in the colour of the text.
function skipped(numbers, at, style) {
  if (numbers[at + 1] !== 5) return numbers[at + 1] === 2 ? 4 : 1;
  if (numbers[at] === 38) style.color = numbers[at + 2] < 16 ? NAMES[numbers[at + 2] % 8] : "";
  return 2;
}

/** Progress bars return to the start of their line: only the last content counts. */
function overwritten(text) {
  if (!text.includes("\r")) return text;
  return text
    .split("\n")
    .map((line) => {
      let end = line.length;
      while (end > 0 && line[end - 1] === "\r") end -= 1;
      return line.slice(line.lastIndexOf("\r", end - 1) + 1, end);
    })
    .join("\n");
}
