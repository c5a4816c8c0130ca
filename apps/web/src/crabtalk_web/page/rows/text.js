// Text of agents: markdown; a guest's in a bubble with its name; reasoning folded; and the text
// that is being written, which grows in place.

import { h } from "../draw/dom.js";
import { icon } from "../draw/icons.js";
import { renderMarkdown, updateMarkdown } from "../draw/markdown.js";
import { colour, nameOf } from "./speaker.js";

export function renderText(row, context) {
  const element = h("div", { class: "said" });
  draw(element, row, context);
  return element;
}

export function updateText(element, row, context) {
  draw(element, row, context);
}

/** Shows live text: {text, thinking, speaker}. */
export function renderLive(live, context = {}) {
  const element = h("div", { class: "said is-live" });
  draw(element, live, { depth: 0, ...context });
  return element;
}

export function updateLive(element, live, context = {}) {
  draw(element, live, { depth: 0, ...context });
}

const drawn = new WeakMap();

function draw(element, { text, thinking, speaker }, context) {
  const who = `${Boolean(thinking)} ${speaker?.kind} ${speaker?.name} ${speaker?.hue}`;
  const before = drawn.get(element);
  if (before?.who === who) {
    before.show(text);
    return;
  }
  colour(element, speaker);
  element.classList.toggle("is-thinking", Boolean(thinking));
  const { node, show } = thinking ? thought(text, context) : words(text, context);
  element.replaceChildren(...[nameOf(speaker, context), node].filter(Boolean));
  drawn.set(element, { who, show });
}

function words(text, context) {
  const node = renderMarkdown(text, { copy: context.copy });
  return { node, show: (next) => updateMarkdown(node, next, { copy: context.copy }) };
}

/** Reasoning is drawn when it is opened. */
function thought(text, context) {
  let current = text;
  let inner = null;
  const details = h("details", { class: "thinking", onToggle: () => open() },
    h("summary", {}, icon("chevron"), "Thinking"));
  const open = () => {
    if (!details.open || inner !== null) return;
    inner = words(current, context);
    details.append(inner.node);
  };
  const show = (next) => {
    current = next;
    inner?.show(next);
  };
  return { node: details, show };
}
