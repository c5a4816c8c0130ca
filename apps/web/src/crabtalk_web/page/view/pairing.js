// A machine asks to be let in: one question, what is being done, and what came of it.

import { fromBase64url } from "../crypto/bytes.js";
import { h } from "../draw/dom.js";
import { icon } from "./icons.js";
import { doing, sentence } from "./task.js";

const KEY_SIZE = 32;

/** @param {{key: string, done: () => void}} flow `key`: as the machine's link has it */
export function pairingView(device, { key, done }) {
  const publicKey = key && fromBase64url(key);
  const body = h("div", { class: "stack", "aria-live": "polite" });
  const element = h("div", { class: "scroll" }, h("div", { class: "sheet centred" }, body));
  const stop = new AbortController();
  const show = (...parts) => body.replaceChildren(...parts.flat(Infinity));

  const letIn = async () => {
    const before = new Set(device.sessions.map((session) => session.id));
    show(heading("Letting it in"), doing("Sending it the keys it needs…"));
    try {
      await device.letMachineIn(publicKey, { signal: stop.signal });
    } catch (error) {
      if (!stop.signal.aborted) show(failure(error, letIn));
      return;
    }
    waitForSessions(before);
  };

  const waitForSessions = (before) => {
    const look = () => {
      const isNew = device.sessions.some((session) => !before.has(session.id));
      show(isNew ? success() : arriving());
      if (isNew) device.removeEventListener("change", look);
      if (isNew) body.querySelector("a")?.focus();
    };
    device.addEventListener("change", look);
    stop.signal.addEventListener("abort", () => device.removeEventListener("change", look));
    look();
  };

  if (publicKey?.length === KEY_SIZE) show(question(letIn, done));
  else show(withoutKey());
  return { element, title: "Let a machine in", close: () => stop.abort() };
}

function heading(text) {
  return [h("div", { class: "sheet-icon" }, icon("machine")), h("h1", {}, text)];
}

function question(letIn, done) {
  return [
    heading("Let this machine in?"),
    h("p", {}, "A machine has shown this link and asks to join your account. Its agents’ conversations will appear here, and it can read nothing of your other machines."),
    h("p", {}, h("strong", {}, "Say yes only if you have just started it yourself.")),
    h("div", { class: "actions" },
      h("button", { class: "button primary", type: "button", onclick: letIn }, "Let it in"),
      h("button", { class: "button quiet", type: "button", onclick: done }, "Not now")),
  ];
}

function arriving() {
  return [
    heading("It is in"),
    doing("Its conversations come in a moment…"),
    h("div", { class: "actions" }, h("a", { class: "button quiet", href: "/" }, "Do not wait")),
  ];
}

function success() {
  return [
    heading("It is in"),
    h("p", { class: "done", role: "status" }, icon("check"), "Its conversations are here."),
    h("p", { class: "small muted" }, "This browser has your only key so far. Write down the backup words under Settings, or add a second device."),
    h("div", { class: "actions" }, h("a", { class: "button primary", href: "/" }, "Open conversations")),
  ];
}

function failure(error, again) {
  return [
    heading("It is not in"),
    h("p", { class: "problem", role: "alert" }, sentence(error)),
    h("div", { class: "actions" },
      h("button", { class: "button", type: "button", onclick: again }, "Try again"),
      h("a", { class: "button quiet", href: "/" }, "Conversations")),
  ];
}

function withoutKey() {
  return [
    heading("No machine in this link"),
    h("p", {}, "The link a machine prints ends with #key= and a row of letters. Open all of it, or scan the code."),
    h("div", { class: "actions" }, h("a", { class: "button", href: "/" }, "Conversations")),
  ];
}
