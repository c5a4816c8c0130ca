// Tool output: its first lines at once, the rest on request. Diffs are shown as diffs, JSON as
// JSON, everything else as terminal output.

import { terminal, terminalText } from "../draw/ansi.js";
import { copyButton, highlighted } from "../draw/code.js";
import { linesOfDiff, renderDiff } from "../draw/diff.js";
import { h } from "../draw/dom.js";
import { counted } from "../draw/time.js";

const FIRST_LINES = 16;
const FIRST_CHARACTERS = 3000;
// Longer output is not drawn in full; the copy has all of it.
const MOST_CHARACTERS = 200_000;

/**
 * @param {string} text
 * @param {{label?: string, language?: string, copy?: Function, isError?: boolean, gutter?: number}}
 * options `gutter` is the number of the first line, if lines are numbered.
 */
export function renderOutput(text, options = {}) {
  const { label = "Output", language = "", copy = null, isError = false, gutter = 0 } = options;
  const lines = language ? null : linesOfDiff(text);
  const json = language || lines ? null : asJson(text);
  const shown = json ?? withoutEnd(text);
  const head = h("div", { class: "output-head" }, h("span", { class: "output-label" }, label),
    copy ? copyButton(() => terminalText(text), copy) : null);
  const body = lines
    ? renderDiff(lines)
    : folding(shown, (part) => lay(part, json === null ? language : "json", gutter), label);
  return h("div", { class: isError ? "output is-error" : "output" }, head, body);
}

function withoutEnd(text) {
  let end = text.length;
  while (end > 0 && text[end - 1] === "\n") end -= 1;
  return text.slice(0, end);
}

function asJson(text) {
  if (!/^\s*[[{]/.test(text) || text.length > MOST_CHARACTERS) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

function lay(text, language, gutter) {
  const code = h("code", { dir: "ltr" }, language ? highlighted(text, language) : terminal(text));
  if (!gutter) return [code];
  const numbers = text.split("\n").map((_, at) => gutter + at).join("\n");
  return [h("span", { class: "gutter", "aria-hidden": "true" }, numbers), code];
}

function folding(text, layOut, label) {
  const pre = h("pre", { class: "output-text", tabindex: "0", role: "group", "aria-label": label });
  const first = beginning(text);
  pre.append(...layOut(first));
  if (first.length === text.length) return pre;
  const lines = text.split("\n").length;
  const words = lines > FIRST_LINES ? counted(lines, "line") : counted(text.length, "character");
  const button = h("button", { type: "button", class: "show-all quiet", onClick: () => {
    pre.replaceChildren(...layOut(text.slice(0, MOST_CHARACTERS)));
    if (text.length > MOST_CHARACTERS) {
      const rest = counted(text.length - MOST_CHARACTERS, "more character");
      button.replaceWith(h("p", { class: "output-more" }, `${rest}: copy it to read all.`));
    } else {
      button.remove();
    }
    pre.focus();
  } }, `Show all (${words})`);
  return h("div", { class: "output-folded" }, pre, button);
}

function beginning(text) {
  let end = -1;
  for (let line = 0; line < FIRST_LINES; line += 1) {
    end = text.indexOf("\n", end + 1);
    if (end === -1) break;
  }
  const byLines = end === -1 ? text.length : end;
  // Two more lines are shown rather than hidden behind a button.
  const isNearlyAll = text.length - byLines < 200 && text.slice(byLines).split("\n").length <= 3;
  return text.slice(0, Math.min(isNearlyAll ? text.length : byLines, FIRST_CHARACTERS));
}
