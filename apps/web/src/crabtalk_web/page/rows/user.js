// Messages of people, from this device or another: text and files, and the state of unsent
// messages.

import { arrange, h, setText } from "../draw/dom.js";
import { renderMarkdown, updateMarkdown } from "../draw/markdown.js";
import { renderFile, updateFile } from "./file.js";

const STATES = { waiting: "Waiting to be sent", sending: "Sending", failed: "Not sent" };

const parts = new WeakMap();

export function renderUser(row, context) {
  const files = h("div", { class: "user-files" });
  const words = renderMarkdown("", { hasBreaks: true });
  words.classList.add("user-words");
  const state = h("div", { class: "user-state" });
  const element = h("div", { class: "user" }, h("span", { class: "visually-hidden" }, "You:"),
    files, words, state);
  parts.set(element, { files, words, state, byId: new Map(), shown: null });
  updateUser(element, row, context);
  return element;
}

export function updateUser(element, row, context) {
  const part = parts.get(element);
  updateFiles(part, row.files ?? [], context);
  part.words.hidden = !row.text;
  updateMarkdown(part.words, row.text, { hasBreaks: true, copy: context.copy });
  element.dataset.state = row.state;
  updateState(part, row, context);
}

function updateFiles(part, files, context) {
  const nodes = files.map((file) => {
    const known = part.byId.get(file.id);
    if (known) updateFile(known, file, context);
    const node = known ?? renderFile(file, context);
    part.byId.set(file.id, node);
    return node;
  });
  arrange(part.files, nodes);
  part.files.hidden = !nodes.length;
}

function updateState(part, row, { session }) {
  const key = `${row.state} ${row.problem} ${row.progress === null}`;
  if (part.shown !== key) {
    part.shown = key;
    drawState(part, row, session);
  }
  if (part.bar && row.progress !== null) part.bar.value = row.progress;
}

function drawState(part, row, session) {
  const words = STATES[row.state];
  part.state.hidden = words === undefined;
  part.bar = row.progress === null || row.progress === undefined ? null : h("progress", {
    class: "progress", max: "1", value: String(row.progress), "aria-label": "Upload",
  });
  if (words === undefined) {
    part.state.replaceChildren();
    return;
  }
  const button = (label, act) =>
    h("button", { type: "button", class: "button quiet small", onClick: act }, label);
  const line = h("span", { class: "user-state-words" });
  setText(line, row.problem ? `${words}. ${row.problem}` : words);
  const acts = [
    row.state === "failed" ? button("Try again", () => session.retry(row.id)) : null,
    row.state === "sending" ? null : button("Discard", () => session.discard(row.id)),
  ];
  part.state.replaceChildren(...[part.bar, line, ...acts].filter(Boolean));
}
