// Joining by a link: this device asks, and the inviting device approves it.

import { h } from "../draw/dom.js";
import { actions, button, link, sheet } from "./controls.js";
import { crab, icon } from "./icons.js";
import { attempt, doing, problemLine } from "./task.js";

const STEPS = [
  ["asking", "Asking to be let in", "Asked to be let in"],
  ["waiting", "Waiting for you to say yes on the other device", "You said yes on the other device"],
  ["letting in", "Opening your account", "Your account is open"],
];
const NO_KEY = "This link has no key in it, or it was used in this tab before. On your other "
  + "device open Settings, Add a device, and open the whole link here.";
const IS_IN = "This browser is in an account already. To join another one, log out under Settings "
  + "first; then open the link again.";
const WHAT = "Your other device made this link. Once it has said yes, this browser reads and "
  + "writes all of your conversations.";

/** @param {{seed: string, done: () => void}} flow */
export function joiningView(device, { seed, done }) {
  const stop = new AbortController();
  const parts = !seed ? withoutLink()
    : device.stage === "ready" ? alreadyIn()
      : asking(device, seed, done, stop.signal);
  const title = h("h1", {}, "Join your account");
  const element = sheet(crab(), title, h("div", { class: "stack" }, parts));
  return { element, title: "Join", close: () => stop.abort(new Error("You left.")) };
}

function withoutLink() {
  return [h("p", {}, NO_KEY), actions(link("Back to the start", "/"))];
}

function alreadyIn() {
  return [
    h("p", {}, IS_IN),
    actions(link("Conversations", "/"), link("Settings", "/settings", "quiet")),
  ];
}

function asking(device, seed, done, signal) {
  const problem = problemLine();
  const steps = h("ol", { class: "plain stack", "aria-label": "Progress" });
  const show = (step) => steps.replaceChildren(...stepLines(step));
  const ask = button("Join", async () => {
    const run = () => device.join(seed, show, { signal });
    if (await attempt(ask, "Joining", problem, run)) done();
    else if (!problem.hidden) steps.replaceChildren();
  }, "primary");
  return [h("p", {}, WHAT), actions(ask), steps, problem];
}

function stepLines(current) {
  const at = STEPS.findIndex(([name]) => name === current);
  return STEPS.slice(0, at + 1).map(([, now, then], number) =>
    h("li", {}, number < at ? h("p", { class: "done" }, icon("check"), then) : doing(`${now}…`)));
}
