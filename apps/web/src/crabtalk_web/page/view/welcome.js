// The first visit: what this is, what to do next, and the two ways to log in.

import { h } from "../draw/dom.js";
import { actions, button, command, field, sheet } from "./controls.js";
import { crab, icon } from "./icons.js";
import { attempt, problemLine, tell } from "./task.js";

const WHAT = "Talk with the agents on your own machines from this browser. What is said is "
  + "encrypted from end to end: the keys are made here and stay here.";
const NAMELESS = "No name, no address, no password. An account is a key in this browser.";
const OPEN_IT = "Open the link it prints, or scan its code. The machine asks here to be let in, "
  + "and its conversations appear.";
const JOIN_HOW = "There: Settings, Add a device. Scan the code with this device’s camera, or paste "
  + "the link here.";
const NO_LINK = "That is no such link. It ends with /join# and a row of letters.";
const INVITE_HOW = "This relay asks new accounts for an invite. Its operator can make one.";
const INVITE_NEEDED = "invite-needed";
const WORDS_HOW = "52 letters and digits in groups of five. Dashes and spaces do not matter.";

/**
 * @param device
 * @param {{isPairing: boolean, invite: string, done: () => void, join: (seed: string) => void}}
 * flow `isPairing`: a machine's link led here, so the account is created for it; `invite`: as in
 * the link
 */
export function welcomeView(device, flow) {
  const already = h("section",
    { class: "stack", id: "already", hidden: true, "aria-label": "Use an account you have" },
    joinCard(flow), restoreCard(device, flow));
  const element = sheet(
    h("div", { class: "stack" },
      crab(), h("h1", {}, "Your agents on any screen"), h("p", {}, WHAT)),
    flow.isPairing ? pairingCard() : nextSteps(),
    waysIn(device, flow, already),
    already);
  return { element, title: "Welcome", close() {} };
}

function waysIn(device, flow, already) {
  const problem = problemLine();
  const { place, given, asked } = inviteField(flow.invite);
  const start = button("Start here", async () => {
    const run = () => device.create(given()).catch(asked);
    if (await attempt(start, "Making your keys", problem, run)) flow.done();
  }, "primary");
  const open = button("I already use it", () => {
    already.hidden = !already.hidden;
    open.setAttribute("aria-expanded", String(!already.hidden));
    if (!already.hidden) already.querySelector("input").focus();
  }, "", { "aria-expanded": "false", "aria-controls": "already" });
  return h("div", { class: "stack" }, place, actions(start, open), problem,
    h("p", { class: "small muted" }, NAMELESS));
}

/** Shown once the relay asks for an invite. */
function inviteField(invite) {
  const input = h("input", {
    class: "input mono", id: "invite", type: "text", value: invite,
    autocomplete: "off", autocapitalize: "characters", spellcheck: "false",
  });
  const place = h("div", { hidden: true }, field("Invite", input, INVITE_HOW));
  const asked = (error) => {
    if (error.code === INVITE_NEEDED) {
      place.hidden = false;
      input.focus();
    }
    throw error;
  };
  return { place, given: () => input.value.trim(), asked };
}

function pairingCard() {
  return h("div", { class: "card" },
    h("div", { class: "doing" }, icon("machine"), h("h2", {}, "A machine asks to be let in")),
    h("p", {}, "First this browser needs an account. Then you decide about the machine."));
}

function nextSteps() {
  return h("ol", { class: "steps" },
    h("li", {}, h("p", {}, "Where your agents run, start ", command("crabtalk-web up"), ".")),
    h("li", {}, h("p", {}, OPEN_IT)));
}

function joinCard(flow) {
  const problem = problemLine();
  const link = h("input", {
    class: "input", id: "join-link", type: "text", inputmode: "url",
    autocomplete: "off", autocapitalize: "off", spellcheck: "false",
  });
  const submit = (event) => {
    event.preventDefault();
    const seed = seedOf(link.value);
    if (seed) flow.join(seed);
    else tell(problem, new Error(NO_LINK));
  };
  return h("form", { class: "card", onsubmit: submit },
    h("h2", {}, "With another device at hand"),
    h("p", { class: "small muted" }, JOIN_HOW),
    field("Link from the other device", link),
    problem,
    actions(h("button", { class: "button", type: "submit" }, "Join")));
}

function restoreCard(device, flow) {
  const problem = problemLine();
  const words = h("textarea", {
    class: "input mono", id: "backup-words", rows: "3",
    autocomplete: "off", autocapitalize: "characters", spellcheck: "false",
  });
  const restore = h("button", { class: "button", type: "submit" }, "Restore");
  const submit = async (event) => {
    event.preventDefault();
    const run = () => device.restore(words.value);
    if (await attempt(restore, "Opening your account", problem, run)) flow.done();
  };
  return h("form", { class: "card", onsubmit: submit },
    h("h2", {}, "With your backup words"),
    field("Backup words", words, WORDS_HOW),
    problem,
    actions(restore));
}

/** Returns the fragment of an invitation link, or the text itself. */
export function seedOf(link) {
  const found = /(?:^|#(?:join=)?)([\w-]{43})$/.exec(link.trim());
  return found ? found[1] : "";
}
