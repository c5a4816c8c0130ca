// Link targets of markdown: address, title, label, and reference definitions. Each is read once, up
// to a limit.

import { unescaped } from "./entities.js";

const DEEPEST = 32;
const LONGEST_TITLE = 5000;

/** Parses a destination at `at`: its value and end, or null. */
export function destination(text, at) {
  if (text[at] === "<") return pointed(text, at);
  let end = at;
  let depth = 0;
  for (; end < text.length; end += 1) {
    const char = text[end];
    if (char === "\\" && isPunctuation(text[end + 1])) end += 1;
    else if (char === "(" && (depth += 1) > DEEPEST) return null;
    else if (char === ")" && (depth -= 1) < 0) break;
    else if (char <= " " || char === "\x7f") break;
  }
  if (depth > 0 || end === at) return end === at && depth <= 0 ? { value: "", end } : null;
  return { value: unescaped(text.slice(at, end)), end };
}

function pointed(text, at) {
  for (let end = at + 1; end < text.length; end += 1) {
    const char = text[end];
    if (char === ">") return { value: unescaped(text.slice(at + 1, end)), end: end + 1 };
    if (char === "\n" || char === "<") return null;
    if (char === "\\") end += 1;
  }
  return null;
}

const TITLE = /"(?:[^"\\]|\\[^])*"|'(?:[^'\\]|\\[^])*'|\((?:[^()\\]|\\[^])*\)/y;

/** Parses a title in quotes or brackets at `at`, or null. */
export function title(text, at) {
  TITLE.lastIndex = at;
  const found = TITLE.exec(text.slice(0, at + LONGEST_TITLE));
  if (found === null) return null;
  return { value: unescaped(found[0].slice(1, -1)), end: TITLE.lastIndex };
}

/** Returns the end of the label that begins at `at` (after its bracket), or -1. */
export function labelEnd(text, at) {
  if (text[at] !== "[") return -1;
  const stop = Math.min(text.length, at + 1001);
  for (let end = at + 1; end < stop; end += 1) {
    if (text[end] === "\\") end += 1;
    else if (text[end] === "[") return -1;
    else if (text[end] === "]") return end + 1;
  }
  return -1;
}

/** Returns a label in the form in which labels are compared. */
export const labelled = (label) =>
  label.trim().replace(/\s+/g, " ").toLowerCase().toUpperCase();

export function isPunctuation(char) {
  return char !== undefined && /[!-/:-@[-`{-~]/.test(char);
}

// ── Definitions ────────────────────────────────────────────────────────────────────────────────

/** Parses a definition at `at`: {label, address, title, end}, or null. */
export function definition(text, at) {
  const end = labelEnd(text, at);
  if (end === -1 || text[end] !== ":") return null;
  const label = labelled(text.slice(at + 1, end - 1));
  const place = skip(text, end + 1);
  if (!label || place >= text.length) return null;
  const found = destination(text, place);
  if (found === null || (found.value === "" && text[place] !== "<")) return null;
  const titled = title(text, skip(text, found.end));
  if (titled !== null && skip(text, found.end) > found.end) {
    const stop = endOfLine(text, titled.end);
    if (stop !== -1) return { label, address: found.value, title: titled.value, end: stop };
  }
  const stop = endOfLine(text, found.end);
  return stop === -1 ? null : { label, address: found.value, title: "", end: stop };
}

/** Skips white space and at most one line end. */
function skip(text, at) {
  let lines = 0;
  for (; at < text.length; at += 1) {
    if (text[at] === "\n" && (lines += 1) > 1) break;
    if (text[at] !== " " && text[at] !== "\t" && text[at] !== "\n") break;
  }
  return at;
}

/** Returns the position after the line end if nothing else is on the line, else -1. */
function endOfLine(text, at) {
  while (text[at] === " " || text[at] === "\t") at += 1;
  if (at >= text.length) return text.length;
  return text[at] === "\n" ? at + 1 : -1;
}
