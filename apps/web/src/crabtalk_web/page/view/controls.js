// The controls that all views use.

import { h } from "../draw/dom.js";
import { icon } from "./icons.js";

/**
 * @param {string | Node | (string | Node)[]} label
 * @param {(event: Event) => void} run
 * @param {string} kind classes: "primary", "danger", "quiet", "small"
 */
export function button(label, run, kind = "", props = {}) {
  const own = { class: `button ${kind}`.trim(), type: "button", onclick: run };
  return h("button", { ...own, ...props }, label);
}

/** An icon button; its label is for screen readers and tooltips. */
export function iconButton(name, label, run, props = {}) {
  const named = { type: "button", "aria-label": label, title: label, onclick: run };
  return h("button", { class: "icon-button", ...named, ...props }, icon(name));
}

export function link(label, href, kind = "") {
  return h("a", { class: `button ${kind}`.trim(), href }, label);
}

export function actions(...parts) {
  return h("div", { class: "actions" }, parts);
}

/** A field with its label above and a hint below. */
export function field(label, control, hint = "") {
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control,
    hint && h("p", { class: "hint" }, hint));
}

export function command(text) {
  return h("code", { class: "command" }, text);
}

export function spinner() {
  return h("span", { class: "spinner", "aria-hidden": "true" });
}

/** A short message in the middle of its pane. */
export function sheet(...parts) {
  return h("div", { class: "scroll" }, h("div", { class: "sheet centred" }, parts));
}

/** The head of a pane with a back button. */
export function paneHead(back, ...parts) {
  return h("header", { class: "head" }, iconButton("back", "Back", back), parts);
}
