// Dialogs: native ones, so that the browser handles focus, Escape and the background.

import { h } from "../draw/dom.js";
import { actions, button } from "./controls.js";

let count = 0;

/**
 * Opens a dialog with a heading. `build(close)` returns its contents.
 * @returns {Promise<any>} the value it was closed with; undefined for Escape
 */
export function openDialog(title, build, { wide = false } = {}) {
  return new Promise((resolve) => {
    const heading = h("h2", { id: `dialog-${(count += 1)}` }, title);
    const body = h("div", { class: "dialog-body" }, heading);
    const name = wide ? "dialog wide" : "dialog";
    const dialog = h("dialog", { class: name, "aria-labelledby": heading.id }, body);
    let outcome;
    const close = (value) => {
      outcome = value;
      dialog.close();
    };
    body.append(...[build(close, dialog)].flat(Infinity).filter(Boolean));
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(outcome);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Asks for confirmation. @returns {Promise<boolean>} */
export async function confirmed({ title, text, yes, danger = false }) {
  const said = await openDialog(title, (close) => [
    [text].flat().map((one) => h("p", {}, one)),
    actions(button("Cancel", () => close(false)),
      button(yes, () => close(true), danger ? "danger" : "primary")),
  ]);
  return said === true;
}
