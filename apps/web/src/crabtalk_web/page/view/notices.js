// Notices: short messages over the page, and announcements for screen readers.

import { h } from "../draw/dom.js";
import { button, iconButton } from "./controls.js";

const SHOWN_MS = 6000;
// Two regions in turn, so that a repeated message is announced again.
const regions = [region("polite"), region("polite")];
const shelf = h("div", { class: "notices", role: "region", "aria-label": "Notices" });
let turn = 0;

export function placeNotices(parent) {
  parent.append(shelf, ...regions);
}

/** Announces a message to screen readers, after the current one. */
export function announce(text) {
  turn = 1 - turn;
  regions[1 - turn].textContent = "";
  regions[turn].textContent = text;
}

/** A message that disappears by itself; with an action it stays until it is used or closed. */
export function notify(text, action = null) {
  const remove = () => notice.remove();
  const run = () => {
    remove();
    action.run();
  };
  const notice = h("div", { class: "notice" }, h("span", {}, text),
    action && button(action.label, run, "small"), iconButton("close", "Dismiss", remove));
  shelf.append(notice);
  announce(text);
  if (!action) goAfter(notice, SHOWN_MS);
  return remove;
}

/** Not while the pointer or the focus is on it. */
function goAfter(notice, milliseconds) {
  setTimeout(() => {
    if (notice.matches(":hover, :focus-within")) goAfter(notice, 1000);
    else notice.remove();
  }, milliseconds);
}

function region(politeness) {
  return h("div", { class: "visually-hidden", "aria-live": politeness, "aria-atomic": "true" });
}
