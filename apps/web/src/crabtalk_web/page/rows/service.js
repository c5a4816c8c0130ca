// Service lines about a conversation, and turns that failed or were cancelled.

import { h } from "../draw/dom.js";
import { icon } from "../draw/icons.js";
import { renderMarkdown, updateMarkdown } from "../draw/markdown.js";
import { colour, nameOf } from "./speaker.js";

export function renderService(row, context) {
  const element = h("div", { class: "service" },
    nameOf(row.speaker, context), renderMarkdown(row.text ?? "", { copy: context.copy }));
  colour(element, row.speaker);
  return element;
}

export function updateService(element, row, context) {
  updateMarkdown(element.querySelector(".markdown"), row.text ?? "", { copy: context.copy });
}

const ENDS = {
  failed: ["alert", "This turn failed. Say something to try again."],
  cancelled: ["stop", "Stopped."],
};

export function renderEnd(row) {
  const [drawing, words] = ENDS[row.status] ?? ENDS.failed;
  return h("p", { class: `turn-end is-${row.status === "cancelled" ? "cancelled" : "failed"}` },
    icon(drawing), words);
}
