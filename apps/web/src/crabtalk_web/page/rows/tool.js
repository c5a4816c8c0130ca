// Tool calls: one line with title, state and duration, and the details behind it. The details are
// created when they are opened.

import { arrange, fill, h, setText } from "../draw/dom.js";
import { icon } from "../draw/icons.js";
import { renderInline } from "../draw/markdown.js";
import { duration, elapsed, keepTime } from "../draw/time.js";
import { iconOf, noteOf, renderCall, renderResult } from "./calls.js";
import { colour, nameOf } from "./speaker.js";
import { Children, countsOf, renderPrompt, renderTaskName } from "./subagent.js";

const parts = new WeakMap();

export function renderTool(row, context) {
  const element = h("div", { class: row.task ? "tool is-task" : "tool" });
  colour(element, row.speaker);
  const title = h("span", { class: "tool-title" });
  const note = h("span", { class: "tool-note" });
  const state = h("span", { class: "tool-state" });
  const drawing = h("span", { class: "tool-icon" }, icon(iconOf(row.name)));
  const body = h("div", { class: "tool-body" });
  const details = h("details", { onToggle: () => openBody(element) },
    h("summary", { class: "tool-head" }, icon("chevron"), drawing, title, note, state), body);
  element.append(...[nameOf(row.speaker, context), details].filter(Boolean));
  parts.set(element, { row, context, details, title, note, state, drawing, body, made: {} });
  // A running sub-agent is open; a finished one is folded.
  if (row.task && row.state === "running" && context.depth < 3) details.open = true;
  updateTool(element, row, context);
  return element;
}

export function updateTool(element, row, context) {
  const part = parts.get(element);
  Object.assign(part, { row, context });
  element.dataset.state = row.state;
  element.classList.toggle("is-task", Boolean(row.task));
  drawTitle(part, row);
  drawState(part, row);
  if (part.details.open) openBody(element);
}

function drawTitle(part, row) {
  const words = row.task?.title || row.title || row.description || row.name || "Tool";
  const key = `${row.task?.name} ${words}`;
  if (part.made.title !== key) {
    part.made.title = key;
    fill(part.title, row.task ? renderTaskName(row.task.name) : null, renderInline(words));
  }
  const drawing = row.task ? "task" : iconOf(row.name);
  if (part.made.icon !== drawing) {
    part.made.icon = drawing;
    fill(part.drawing, icon(drawing));
  }
  drawNote(part, row);
}

/** A sub-agent's statistics, an edit's line counts, or a command's error. */
function drawNote(part, row) {
  if (!row.task && part.made.noted === row.result) return;
  part.made.noted = row.result;
  const note = row.task ? { text: countsOf(row), isBad: false } : noteOf(row);
  setText(part.note, note?.text ?? "");
  part.note.classList.toggle("is-bad", Boolean(note?.isBad));
}

const WORDS = { failed: ["Failed", "cross"], cut: ["Stopped", "stop"] };

function drawState(part, row) {
  const took = row.durationMs > 0 ? duration(row.durationMs) : "";
  const key = `${row.state} ${took}`;
  if (part.made.state === key) return;
  part.made.state = key;
  if (row.state === "running") {
    keepTime();
    fill(part.state, h("span", { class: "spinner", "aria-hidden": "true" }),
      h("span", { class: "visually-hidden" }, "Running for "),
      h("span", { dataset: { since: String(row.time) } }, elapsed(Date.now() - row.time)));
    return;
  }
  const [word, drawing] = WORDS[row.state] ?? [];
  const said = word
    ? h("span", { class: "tool-word" }, icon(drawing), word)
    : h("span", { class: "visually-hidden" }, "Done");
  fill(part.state, said, took ? ` ${took}` : null);
}

/** Creates the details, or updates only what has changed in them. */
function openBody(element) {
  const { row, context, details, body, made } = parts.get(element);
  if (!details.open) return;
  if (made.args !== row.args) {
    made.args = row.args;
    made.call = row.task ? renderPrompt(row, context) : renderCall(row, context);
  }
  const outcome = `${row.state} ${row.result}`;
  if (made.outcome !== outcome) {
    made.outcome = outcome;
    made.result = row.task ? null : renderResult(row, context);
  }
  const nodes = [...made.call];
  if (row.task || row.children?.length) {
    made.children ??= new Children();
    made.children.update(row, { ...context, depth: context.depth + 1 });
    nodes.push(made.children.element);
  }
  nodes.push(...(made.result ?? (made.children ? made.children.result(row, context) : [])));
  if (!nodes.length) {
    made.nothing ??= h("p", { class: "nothing" });
    const isRunning = row.state === "running";
    setText(made.nothing, isRunning ? "No output yet." : "There is nothing more to see.");
    nodes.push(made.nothing);
  }
  arrange(body, nodes);
}
