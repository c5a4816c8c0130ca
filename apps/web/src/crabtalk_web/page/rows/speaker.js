// The speaker of a row, if it is not the conversation's own agent: a name in its own colour.

import { h } from "../draw/dom.js";
import { visible } from "../draw/visible.js";

/** Returns the line with the name, or null. Inside a task the speaker is clear. */
export function nameOf(speaker, context) {
  if (!speaker || (speaker.kind === "task" && context.depth > 0)) return null;
  return h("p", { class: "speaker-name" }, h("bdi", {}, visible(speaker.name.slice(0, 200))),
    speaker.kind === "guest" ? h("span", { class: "speaker-kind" }, " guest") : null);
}

/** Gives an element the speaker's colour. */
export function colour(element, speaker) {
  element.classList.toggle("is-guest", speaker?.kind === "guest");
  element.classList.toggle("has-speaker", Boolean(speaker));
  if (speaker) element.style.setProperty("--hue", String(Number(speaker.hue) || 0));
}
