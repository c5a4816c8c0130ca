// Views of what is not there: no conversation chosen, none found, no storage, no keys.

import { h } from "../draw/dom.js";
import { crab } from "./icons.js";
import { doing } from "./task.js";

export function nothingChosen(device) {
  const isNew = !device.sessions.length;
  return state("", h("div", { class: "empty" }, crab(),
    h("p", {}, isNew ? "Conversations appear here when a machine is in." : "Choose a conversation."),
    h("p", { class: "small" }, h("kbd", {}, "?"), " shows the keys.")));
}

export function missingView() {
  return state("Not found", h("div", { class: "empty" },
    h("h1", {}, "There is nothing here"),
    h("p", {}, "This address leads nowhere."),
    h("a", { class: "button", href: "/" }, "Conversations")));
}

/** A conversation that is gone, or that our keys do not open. */
export function lostView(session) {
  return state("Not found", h("div", { class: "empty" },
    h("h1", {}, session ? "This conversation is sealed" : "This conversation is not here"),
    h("p", {}, session
      ? "It was sealed for another account, and cannot be read with the keys of this browser."
      : "It was deleted, it belongs to another account, or it has not come yet."),
    h("a", { class: "button", href: "/" }, "Conversations")));
}

export function waitingView() {
  return state("", h("div", { class: "empty late" }, doing("Looking for this conversation…")));
}

export function unsupportedView() {
  return state("Not supported", h("div", { class: "scroll" }, h("div", { class: "sheet centred" },
    crab(),
    h("h1", {}, "This page came over an open line"),
    h("p", {}, "A browser keeps keys only for a page that came by https, or from this machine itself. Open it by its https address, or as localhost."))));
}

export function failedView(problem) {
  return state("No storage", h("div", { class: "scroll" }, h("div", { class: "sheet centred" },
    crab(),
    h("h1", {}, "This browser keeps nothing"),
    h("p", { role: "alert" }, problem || "It does not let this page keep its keys."),
    h("p", { class: "muted" }, "Private windows and blocked site data cause this. Allow this page to keep data, then load it again."),
    h("div", { class: "actions" },
      h("button", { class: "button primary", type: "button", onclick: () => location.reload() }, "Load again")))));
}

function state(title, element) {
  return { title, element, close() {} };
}
