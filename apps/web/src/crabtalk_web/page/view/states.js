// Placeholder views: no conversation chosen, none found, no storage, no keys.

import { h } from "../draw/dom.js";
import { actions, button, link, sheet } from "./controls.js";
import { crab } from "./icons.js";
import { doing } from "./task.js";

const SEALED = "It was sealed for another account, and cannot be read with the keys of this "
  + "browser.";
const GONE = "It was deleted, it belongs to another account, or it has not come yet.";
const OPEN_LINE = "A browser keeps keys only for a page that came by https, or from this machine "
  + "itself. Open it by its https address, or as localhost.";
const BLOCKED = "Private windows and blocked site data cause this. Allow this page to keep data, "
  + "then load it again.";

export function nothingChosen(device) {
  const isNew = !device.sessions.length;
  const text = isNew ? "Conversations appear here when a machine is in." : "Choose a conversation.";
  return state("", empty(crab(), h("p", {}, text),
    h("p", { class: "small" }, h("kbd", {}, "?"), " shows the keys.")));
}

export function missingView() {
  return state("Not found", empty(h("h1", {}, "There is nothing here"),
    h("p", {}, "This address leads nowhere."), link("Conversations", "/")));
}

/** A conversation that is gone, or that our keys do not open. */
export function lostView(session) {
  const title = session ? "This conversation is sealed" : "This conversation is not here";
  return state("Not found", empty(h("h1", {}, title), h("p", {}, session ? SEALED : GONE),
    link("Conversations", "/")));
}

export function waitingView() {
  return state("", h("div", { class: "empty late" }, doing("Looking for this conversation…")));
}

export function unsupportedView() {
  return state("Not supported", sheet(crab(), h("h1", {}, "This page came over an open line"),
    h("p", {}, OPEN_LINE)));
}

export function failedView(problem) {
  return state("No storage", sheet(crab(), h("h1", {}, "This browser keeps nothing"),
    h("p", { role: "alert" }, problem || "It does not let this page keep its keys."),
    h("p", { class: "muted" }, BLOCKED),
    actions(button("Load again", () => location.reload(), "primary"))));
}

function empty(...parts) {
  return h("div", { class: "empty" }, parts);
}

function state(title, element) {
  return { title, element, close() {} };
}
