// Joining by a link: this device asks, the one that made the link lets it in.

import { h } from "../draw/dom.js";
import { crab, icon } from "./icons.js";
import { attempt, doing, isBusy, problemLine } from "./task.js";

const STEPS = [
  ["asking", "Asking to be let in", "Asked to be let in"],
  ["waiting", "Waiting for you to say yes on the other device", "You said yes on the other device"],
  ["letting in", "Opening your account", "Your account is open"],
];

/** @param {{seed: string, done: () => void}} flow */
export function joiningView(device, { seed, done }) {
  const body = h("div", { class: "stack" });
  const element = h("div", { class: "scroll" },
    h("div", { class: "sheet centred" }, crab(), h("h1", {}, "Join your account"), body));
  const view = { element, title: "Join", close() {} };
  if (!seed) body.append(...withoutLink());
  else if (device.stage === "ready") body.append(...alreadyIn());
  else body.append(...ask(device, seed, done, body));
  return view;
}

function withoutLink() {
  return [
    h("p", {}, "This link has no key in it, or it was used in this tab before. On your other device open Settings, Add a device, and open the whole link here."),
    h("div", { class: "actions" }, h("a", { class: "button", href: "/" }, "Back to the start")),
  ];
}

function alreadyIn() {
  return [
    h("p", {}, "This browser is in an account already. To join another one, log out under Settings first; then open the link again."),
    h("div", { class: "actions" }, h("a", { class: "button", href: "/" }, "Conversations"),
      h("a", { class: "button quiet", href: "/settings" }, "Settings")),
  ];
}

function ask(device, seed, done, body) {
  const problem = problemLine();
  const button = h("button", { class: "button primary", type: "button" }, "Join");
  const steps = h("ol", { class: "plain stack", "aria-label": "Progress" });
  const show = (step) => steps.replaceChildren(...stepLines(step));
  button.addEventListener("click", async () => {
    if (isBusy(button)) return;
    show("asking");
    const isIn = await attempt(button, "Joining", problem, () => device.join(seed, show));
    if (isIn) done();
    else steps.replaceChildren();
  });
  return [
    h("p", {}, "Your other device made this link. Once it has said yes, this browser reads and writes all of your conversations."),
    h("div", { class: "actions" }, button),
    steps,
    problem,
  ];
}

function stepLines(current) {
  const at = STEPS.findIndex(([name]) => name === current);
  return STEPS.slice(0, at + 1).map(([, now, then], number) =>
    h("li", {}, number < at ? h("p", { class: "done" }, icon("check"), then) : doing(`${now}…`)));
}
