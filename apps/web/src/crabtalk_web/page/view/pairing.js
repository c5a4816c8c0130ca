// A machine asks to be let in: one question, its progress, and its result.

import { fromBase64url } from "../crypto/bytes.js";
import { h } from "../draw/dom.js";
import { AwayError } from "../relay/errors.js";
import { actions, button, link } from "./controls.js";
import { icon } from "./icons.js";
import { doing, sentence } from "./task.js";

const KEY_SIZE = 32;
const WHAT = "A machine has shown this link and asks to join your account. Its agents’ "
  + "conversations will appear here, and it can read nothing of your other machines.";
const SAFE = "This browser has your only key so far. Write down the backup words under Settings, "
  + "or add a second device.";
const NO_KEY = "The link a machine prints ends with #key= and a row of letters. Open all of it, or "
  + "scan the code.";

/** @param {{key: string, done: () => void}} flow `key`: as in the machine's link */
export function pairingView(device, { key, done }) {
  const publicKey = key && fromBase64url(key);
  const body = h("div", { class: "stack", "aria-live": "polite" });
  const element = h("div", { class: "scroll" }, h("div", { class: "sheet centred" }, body));
  const stop = new AbortController();
  const show = (parts) => body.replaceChildren(...parts.flat());

  const letIn = async () => {
    const before = new Set(device.sessions.map((session) => session.id));
    show([heading("Letting it in"), doing("Sending it the keys it needs…")]);
    try {
      await device.letMachineIn(publicKey, { signal: stop.signal });
    } catch (error) {
      if (!stop.signal.aborted) show(failure(error, letIn));
      return;
    }
    waitForSessions(before);
  };

  const waitForSessions = (before) => {
    let isHere = null;
    const look = () => {
      const was = isHere;
      isHere = device.sessions.some((session) => !before.has(session.id));
      if (isHere !== was) show(isHere ? success() : arriving());
      if (isHere && !was) body.querySelector("a").focus();
    };
    device.addEventListener("change", look, { signal: stop.signal });
    look();
  };

  show(publicKey?.length === KEY_SIZE ? question(letIn, done) : withoutKey());
  return { element, title: "Let a machine in", close: () => stop.abort() };
}

function heading(text) {
  return [h("div", { class: "sheet-icon" }, icon("machine")), h("h1", {}, text)];
}

function question(letIn, done) {
  return [
    heading("Let this machine in?"),
    h("p", {}, WHAT),
    h("p", {}, h("strong", {}, "Say yes only if you have just started it yourself.")),
    actions(button("Let it in", letIn, "primary"), button("Not now", done, "quiet")),
  ];
}

function arriving() {
  return [
    heading("It is in"),
    doing("Its conversations come in a moment…"),
    actions(link("Do not wait", "/", "quiet")),
  ];
}

function success() {
  return [
    heading("It is in"),
    h("p", { class: "done", role: "status" }, icon("check"), "Its conversations are here."),
    h("p", { class: "small muted" }, SAFE),
    actions(link("Open conversations", "/", "primary")),
  ];
}

function failure(error, again) {
  // A refusal is final; a relay that was unavailable may be back.
  const retry = error instanceof AwayError && button("Try again", again);
  return [
    heading("It is not in"),
    h("p", { class: "problem", role: "alert" }, sentence(error)),
    actions(retry, link("Conversations", "/", retry ? "quiet" : "")),
  ];
}

function withoutKey() {
  const words = h("p", {}, NO_KEY);
  return [heading("No machine in this link"), words, actions(link("Conversations", "/"))];
}
