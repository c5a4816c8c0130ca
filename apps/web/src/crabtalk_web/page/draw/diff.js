// Diffs: removed and added lines with the changed words marked, from two texts or from a text that
// is a diff. Long unchanged parts are folded.

import { changes } from "./changes.js";
import { h } from "./dom.js";
import { counted } from "./time.js";
import { visible } from "./visible.js";

const CONTEXT = 3;
const MOST_LINES = 2000;
const LONGEST_LINE = 1000; // longer lines are cut, and their words are not compared

/** Returns the lines of a diff: {kind: "same" | "added" | "removed" | "note", text, parts}. */
export function linesBetween(old, fresh) {
  const [before, after] = [old ? old.split("\n") : [], fresh ? fresh.split("\n") : []];
  const lines = changes(before, after).map((step) => ({
    kind: step.kind,
    text: step.kind === "added" ? after[step.to] : before[step.from],
  }));
  return withWords(lines);
}

/** Returns the lines of a text that is a diff, or null for any other text. */
export function linesOfDiff(text) {
  if (!/^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@/m.test(text)) return null;
  let isInside = false; // false in the lines that name the files
  const lines = text.replace(/\n$/, "").split("\n").map((line) => {
    if (line.startsWith("@@")) isInside = true;
    else if (line.startsWith("diff ")) isInside = false;
    const kind = isInside ? (KINDS[line[0]] ?? "same") : "note";
    return { kind, text: kind === "note" ? line : line.slice(1) };
  });
  return withWords(lines);
}

const KINDS = { "@": "note", "\\": "note", "+": "added", "-": "removed" };

/** Compares removed lines word by word with an equal number of added lines. */
function withWords(lines) {
  let at = 0;
  while (at < lines.length) {
    const removed = run(lines, at, "removed");
    const added = run(lines, at + removed, "added");
    if (removed > 0 && removed === added) {
      for (let pair = at; pair < at + removed; pair += 1) {
        markWords(lines[pair], lines[pair + removed]);
      }
    }
    at += Math.max(1, removed + added);
  }
  return lines;
}

function run(lines, at, kind) {
  let end = at;
  while (end < lines.length && lines[end].kind === kind) end += 1;
  return end - at;
}

function markWords(removed, added) {
  if (removed.text.length > LONGEST_LINE || added.text.length > LONGEST_LINE) return;
  const [old, fresh] = [wordsOf(removed.text), wordsOf(added.text)];
  const steps = changes(old, fresh, 60);
  const letters = (words) => words.reduce((sum, word) => sum + word.trim().length, 0);
  const same = letters(steps.filter((step) => step.kind === "same").map((step) => old[step.from]));
  // Lines with almost nothing in common are not versions of each other.
  if (same * 4 < Math.min(letters(old), letters(fresh))) return;
  removed.parts = partsOf(steps, "removed", (step) => old[step.from]);
  added.parts = partsOf(steps, "added", (step) => fresh[step.to]);
}

const wordsOf = (line) => line.match(/[\p{L}\p{N}_]+|\s+|[^]/gu) ?? [];

function partsOf(steps, kind, textOf) {
  const parts = [];
  for (const step of steps) {
    if (step.kind !== "same" && step.kind !== kind) continue;
    const isMarked = step.kind === kind;
    const last = parts[parts.length - 1];
    if (last !== undefined && last.isMarked === isMarked) last.text += textOf(step);
    else parts.push({ text: textOf(step), isMarked });
  }
  return parts;
}

// ── As elements ────────────────────────────────────────────────────────────────────────────────

const SIGNS = { same: " ", added: "+", removed: "-", note: " " };

/** Returns an element for the lines of linesBetween or linesOfDiff. */
export function renderDiff(lines, label = "Changes") {
  const [added, removed] = ["added", "removed"].map(
    (kind) => lines.filter((line) => line.kind === kind).length,
  );
  const shown = lines.slice(0, MOST_LINES);
  const list = h("div", {
    class: "diff",
    dir: "ltr",
    tabindex: "0",
    role: "group",
    "aria-label": `${label}: ${counted(added, "line")} added, ${counted(removed, "line")} removed`,
  }, h("div", { class: "diff-lines" }, folded(shown)));
  if (lines.length > MOST_LINES) {
    const rest = counted(lines.length - MOST_LINES, "more line");
    list.append(h("p", { class: "diff-more" }, `${rest} not shown`));
  }
  return list;
}

function folded(lines) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const same = run(lines, at, "same");
    const [head, tail] = [at === 0 ? 0 : CONTEXT, at + same === lines.length ? 0 : CONTEXT];
    if (same > head + tail + 2) {
      nodes.push(lines.slice(at, at + head).map(renderLine));
      nodes.push(foldOf(lines.slice(at + head, at + same - tail)));
      nodes.push(lines.slice(at + same - tail, at + same).map(renderLine));
    } else {
      nodes.push(lines.slice(at, at + same).map(renderLine));
    }
    at += same;
    if (at < lines.length) nodes.push(renderLine(lines[at]));
    at += 1;
  }
  return nodes;
}

function foldOf(lines) {
  const button = h("button", { type: "button", class: "diff-fold quiet", onClick: () => {
    const rendered = lines.map(renderLine);
    rendered[0].tabIndex = -1;
    button.replaceWith(...rendered);
    rendered[0].focus();
  } }, `Show ${counted(lines.length, "unchanged line")}`);
  return button;
}

function renderLine(line) {
  const text = line.parts
    ? line.parts.map((part) =>
        part.isMarked
          ? h("mark", {}, visible(part.text, { isCode: true }))
          : visible(part.text, { isCode: true }))
    : visible(line.text.slice(0, 20 * LONGEST_LINE), { isCode: true });
  const tag = { added: "ins", removed: "del" }[line.kind] ?? "span";
  return h("div", { class: `diff-line ${line.kind}` },
    h("span", { class: "diff-sign" }, SIGNS[line.kind]), h(tag, { class: "diff-text" }, text));
}
