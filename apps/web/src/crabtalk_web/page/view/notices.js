// Notices: short sentences over the page, and what is said to screen readers alone.

import { h } from "../draw/dom.js";
import { button, iconButton } from "./controls.js";

const SHOWN_MS = 6000;
// Two regions take turns, so that the same words said twice are heard twice.
const regions = [region("polite"), region("polite")];
const shelf = h("div", { class: "notices", role: "region", "aria-label": "Notices" });
let turn = 0;

export function placeNotices(parent) {
  parent.append(shelf, ...regions);
}

/** Says it to screen readers, once they are done with what they are saying. */
export function announce(text) {
  turn = 1 - turn;
  regions[1 - turn].textContent = "";
  regions[turn].textContent = text;
}

/** A sentence that goes by itself; with an action it stays until it was dealt with. */
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

/** Not while somebody points at it or is in it. */
function goAfter(notice, milliseconds) {
  setTimeout(() => {
    if (notice.matches(":hover, :focus-within")) goAfter(notice, 1000);
    else notice.remove();
  }, milliseconds);
}

function region(politeness) {
  return h("div", { class: "visually-hidden", "aria-live": politeness, "aria-atomic": "true" });
}
