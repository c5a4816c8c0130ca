// Global keyboard shortcuts, and the list of them. They do not apply while the person is typing.

import { h } from "../draw/dom.js";
import { actions, button } from "./controls.js";
import { openDialog } from "./dialog.js";

const platform = navigator.userAgentData?.platform ?? navigator.platform ?? "";
const isMac = /mac|iphone|ipad/i.test(platform);
export const CTRL = isMac ? "⌘" : "Ctrl";

const KEYS = [
  [["/"], "Search"],
  [["j"], "Next conversation"],
  [["k"], "Previous conversation"],
  [["c"], "Write in this conversation"],
  [["Enter"], "Send"],
  [["Shift", "Enter"], "New line"],
  [["@"], "Bring a guest in"],
  [["/"], "At the start of a message: a skill"],
  [[CTRL, "."], "Stop the agent"],
  [["End"], "To the newest message"],
  [["Esc"], "Close, or back"],
  [["?"], "This list"],
];

/** @param {Record<string, () => void>} actions by key */
export function listenForKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const isCommand = event.ctrlKey || event.metaKey;
    if (isCommand && event.key === ".") run(actions.stop, event);
    if (isCommand || event.altKey) return;
    if (event.key === "Escape") run(actions.escape, event);
    else if (!isWriting(event.target)) run(actions[event.key], event);
  });
}

export function showKeys() {
  return openDialog("Keys", (close) => [
    h("dl", { class: "keys" }, KEYS.map(([keys, what]) => [
      h("dt", {}, keys.map((key, at) => [at ? " " : null, h("kbd", {}, key)])),
      h("dd", {}, what),
    ])),
    actions(button("Close", () => close())),
  ]);
}

export function isWriting(element) {
  return Boolean(element?.closest?.("input, textarea, select, [contenteditable]"));
}

function run(action, event) {
  if (!action) return;
  if (action(event) !== false) event.preventDefault();
}
