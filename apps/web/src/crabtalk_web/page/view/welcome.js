// The first visit: what this is, what to do next, and the two ways in.

import { h } from "../draw/dom.js";
import { crab, icon } from "./icons.js";
import { attempt, isBusy, problemLine } from "./task.js";

/**
 * @param device
 * @param {{isPairing: boolean, done: () => void, join: (seed: string) => void}} flow
 *   `isPairing`: a machine's link led here, so the account is made for it
 */
export function welcomeView(device, flow) {
  const problem = problemLine();
  const start = h("button", { class: "button primary", type: "button" }, "Start here");
  start.addEventListener("click", async () => {
    if (isBusy(start)) return;
    const isMade = await attempt(start, "Making your keys", problem, () => device.create());
    if (isMade) flow.done();
  });
  const already = alreadySection(device, flow);
  const open = h("button", {
    class: "button", type: "button", "aria-expanded": "false", "aria-controls": "already",
    onclick: () => {
      already.hidden = !already.hidden;
      open.setAttribute("aria-expanded", String(!already.hidden));
      if (!already.hidden) already.querySelector("input, textarea").focus();
    },
  }, "I already use it");
  const element = h("div", { class: "scroll" },
    h("div", { class: "sheet centred" },
      h("div", { class: "stack" }, crab(), h("h1", {}, "Your agents on any screen"),
        h("p", {}, "Talk with the agents on your own machines from this browser. What is said is encrypted from end to end: the keys are made here and stay here.")),
      flow.isPairing ? pairingCard() : nextSteps(),
      h("div", { class: "stack" },
        h("div", { class: "actions" }, start, open),
        problem,
        h("p", { class: "small muted" }, "No name, no address, no password. An account is a key in this browser.")),
      already));
  return { element, title: "Welcome", close() {} };
}

function pairingCard() {
  return h("div", { class: "card" },
    h("div", { class: "doing" }, icon("machine"), h("h2", {}, "A machine asks to be let in")),
    h("p", {}, "First this browser needs an account. Then you decide about the machine."));
}

function nextSteps() {
  return h("ol", { class: "steps" },
    h("li", {}, h("p", {}, "Where your agents run, start ", h("code", { class: "command" }, "crabtalk-web up"), ".")),
    h("li", {}, h("p", {}, "Open the link it prints, or scan its code. The machine asks here to be let in, and its conversations appear.")));
}

function alreadySection(device, flow) {
  return h("section", { class: "stack", id: "already", hidden: true, "aria-label": "Use an account you have" },
    joinCard(flow), restoreCard(device, flow));
}

function joinCard(flow) {
  const problem = problemLine();
  const link = h("input", {
    class: "input", id: "join-link", type: "text", autocomplete: "off", autocapitalize: "off",
    spellcheck: "false", inputmode: "url",
  });
  const submit = (event) => {
    event.preventDefault();
    const seed = seedOf(link.value);
    problem.hidden = Boolean(seed);
    problem.textContent = "That is no such link. It ends with /join# and a row of letters.";
    if (seed) flow.join(seed);
  };
  return h("form", { class: "card", onsubmit: submit },
    h("h2", {}, "With another device at hand"),
    h("p", { class: "small muted" }, "There: Settings, Add a device. Scan the code with this device’s camera, or paste the link here."),
    h("div", { class: "field" }, h("label", { for: "join-link" }, "Link from the other device"), link),
    problem,
    h("div", { class: "actions" }, h("button", { class: "button", type: "submit" }, "Join")));
}

function restoreCard(device, flow) {
  const problem = problemLine();
  const words = h("textarea", {
    class: "input mono", id: "backup-words", rows: "3", autocomplete: "off", autocapitalize: "characters",
    spellcheck: "false",
  });
  const button = h("button", { class: "button", type: "submit" }, "Restore");
  const submit = async (event) => {
    event.preventDefault();
    if (isBusy(button)) return;
    const isIn = await attempt(button, "Opening your account", problem, () => device.restore(words.value));
    if (isIn) flow.done();
  };
  return h("form", { class: "card", onsubmit: submit },
    h("h2", {}, "With your backup words"),
    h("div", { class: "field" },
      h("label", { for: "backup-words" }, "Backup words"), words,
      h("p", { class: "hint" }, "52 letters and digits in groups of five. Dashes and spaces do not matter.")),
    problem,
    h("div", { class: "actions" }, button));
}

/** What stands behind # of an invitation, whatever stands before it. */
export function seedOf(link) {
  const found = /(?:^|#(?:join=)?)([\w-]{43})$/.exec(link.trim());
  return found ? found[1] : "";
}
