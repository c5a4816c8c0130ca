// Calls of tools: one line that says what, how it stands and how long it took, and what was asked
// and answered behind it. Nothing behind the line is made before somebody opens it.

import { arrange, fill, h } from "../draw/dom.js";
import { icon } from "../draw/icons.js";
import { renderInline, renderMarkdown } from "../draw/markdown.js";
import { duration, elapsed, keepTime } from "../draw/time.js";
import { iconOf, renderCall, renderResult } from "./calls.js";
import { Children, renderCounts } from "./subagent.js";
import { nameOf, colour } from "./speaker.js";

const parts = new WeakMap();

export function renderTool(row, context) {
  const element = h("div", { class: row.task ? "tool is-task" : "tool" });
  colour(element, row.speaker);
  const title = h("span", { class: "tool-title" });
  const counts = h("span", { class: "tool-counts" });
  const state = h("span", { class: "tool-state" });
  const drawing = h("span", { class: "tool-icon" }, icon(iconOf(row.name)));
  const body = h("div", { class: "tool-body" });
  const details = h("details", { onToggle: () => openBody(element) },
    h("summary", { class: "tool-head" }, icon("chevron"), drawing, title, counts, state), body);
  element.append(...[nameOf(row.speaker, context), details].filter(Boolean));
  parts.set(element, { row, context, details, title, counts, state, drawing, body, made: {} });
  // A sub-agent at work is watched; what is done is one line.
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
  if (part.made.title !== words) {
    part.made.title = words;
    fill(part.title, renderInline(words));
  }
  const drawing = row.task ? "task" : iconOf(row.name);
  if (part.made.icon !== drawing) {
    part.made.icon = drawing;
    fill(part.drawing, icon(drawing));
  }
  const counts = row.task ? renderCounts(row) : "";
  if (part.counts.textContent !== counts) part.counts.textContent = counts;
}

const WORDS = { failed: "Failed", cut: "Stopped" };

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
  const word = WORDS[row.state];
  fill(part.state, word ? h("span", { class: "tool-word" }, icon(row.state === "cut" ? "stop" : "cross"), word)
    : h("span", { class: "visually-hidden" }, "Done"), took ? ` ${took}` : null);
}

/** Makes what is behind the line, or only what of it has changed since it was made. */
function openBody(element) {
  const { row, context, details, body, made } = parts.get(element);
  if (!details.open) return;
  if (made.args !== row.args) {
    made.args = row.args;
    made.call = row.task ? renderTaskCall(row, context) : renderCall(row, context);
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
    made.nothing.textContent = row.state === "running" ? "No output yet." : "There is nothing more to see.";
    nodes.push(made.nothing);
  }
  arrange(body, nodes);
}

/** What a sub-agent was told, folded: its words are what counts. */
function renderTaskCall(row, context) {
  const prompt = [row.args?.prompt, row.args?.message, row.args?.description].find(
    (text) => typeof text === "string" && text.trim(),
  );
  if (!prompt) return [];
  const details = h("details", { class: "task-prompt", onToggle: () => {
    if (details.open && details.childElementCount === 1) details.append(renderMarkdown(prompt, { copy: context.copy }));
  } }, h("summary", {}, icon("chevron"), "What it was told"));
  return [details];
}
