// The bars at the top: no connection, or a new version is available.

import { h, setText } from "../draw/dom.js";
import { button } from "./controls.js";
import { icon } from "./icons.js";

// Interruptions shorter than this are not shown.
const QUIET_MS = 1500;
const KEPT = "What you write is kept and sent later.";

export class ConnectionBar {
  #device;
  #timer = 0;
  #text = h("span", {});

  constructor(device) {
    this.#device = device;
    const props = { class: "bar", role: "status", hidden: true };
    this.element = h("div", props, icon("offline"), this.#text);
    device.addEventListener("change", () => this.draw());
    this.draw();
  }

  draw() {
    clearTimeout(this.#timer);
    const { state, since, problem } = this.#device.connection;
    const { stage, isRevoked } = this.#device;
    const isAway = stage === "ready" && !isRevoked && state !== "online";
    const left = since + QUIET_MS - Date.now();
    if (isAway && left > 0) {
      this.#timer = setTimeout(() => this.draw(), left);
      return;
    }
    this.element.hidden = !isAway;
    if (!isAway) return;
    setText(this.#text, state === "offline" ? offline(problem) : `Connecting. ${KEPT}`);
  }
}

function offline(problem) {
  return problem ? `Offline: ${problem.replace(/\.$/, "")}. ${KEPT}` : `Offline. ${KEPT}`;
}

/** A new version of the page is available; the person decides when to load it. */
export function updateBar(take) {
  return h("div", { class: "bar", role: "status" },
    h("span", {}, "A newer version of this page is here."), button("Load it", take, "small"));
}

/**
 * This device was removed from the account elsewhere. It still has the keys, and may log in again.
 */
export function revokedBar(device, leave) {
  const bar = h("div", { class: "bar", role: "alert" },
    h("span", {}, "This browser was taken out of your account."),
    button("Log in again", () => device.logInAgain(), "small"),
    button("Remove everything here", () => device.logOut().then(leave), "small"));
  const draw = () => (bar.hidden = !device.isRevoked);
  device.addEventListener("change", draw);
  draw();
  return bar;
}
