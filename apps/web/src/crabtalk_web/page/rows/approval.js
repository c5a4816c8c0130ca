// Approvals: a tool call that needs a person's permission. The whole call is shown as literal text,
// with its directory and environment, and one button for each answer. Only pressing a button allows
// anything, and a button that has just appeared is inactive for a moment.

import { fill, h, setText } from "../draw/dom.js";
import { renderLiteral } from "../draw/literal.js";
import { counted } from "../draw/time.js";
import { visible } from "../draw/visible.js";

const ALLOW = "Allow";
const DENY = "Deny";
const ALWAYS = "Always";
// How long a button that is new, or has moved, cannot allow anything. Milliseconds.
const SETTLE_MS = 500;
const CUT = "This call is too large to be shown here as a whole. Allow it in the terminal, or deny "
  + "it here.";

const controllers = new WeakMap();
let drawn = 0;

/**
 * @param {object} question {id, questions: [{id, options, approval}]}
 * @param {{answer: Function}} acts `answer(answers)` with {questionId: {options: [label], digest}};
 * may return {already: true}.
 * @returns {HTMLElement}
 */
export function renderApproval(question, { answer }) {
  const controller = new Deciding(question, answer);
  controllers.set(controller.element, controller);
  return controller.element;
}

/** Content above it has gone, so its buttons may be where others were a moment ago. */
export function settleApproval(element) {
  controllers.get(element)?.settle();
}

/** Shows an approval in the history: the same facts without the buttons. */
export function renderApprovalFacts(approval) {
  return h("div", { class: "approval-part" }, renderStranger(approval), renderCall(approval),
    renderFacts(approval));
}

/** Several calls of one step are decided one by one and answered together. */
class Deciding {
  #answer;
  #parts;
  #note = h("p", { class: "question-note", role: "status", hidden: true });
  #problem = h("p", { class: "problem", role: "alert", hidden: true });
  #state = "open";
  #timer = 0;

  constructor(question, answer) {
    this.#answer = answer;
    this.#parts = question.questions.map((one) => new Part(one, () => this.#decided()));
    const tools = question.questions.map((one) => one.approval?.tool || one.header || "a tool");
    this.element = h("section", {
      class: "question approval",
      "aria-label": `Permission to call ${tools.join(", ")}`,
    }, this.#parts.map((part) => part.element), this.#problem, this.#note);
    this.settle();
  }

  settle() {
    clearTimeout(this.#timer);
    for (const part of this.#parts) part.isSettled = false;
    this.#draw();
    this.#timer = setTimeout(() => {
      for (const part of this.#parts) part.isSettled = true;
      this.#draw();
    }, SETTLE_MS);
  }

  #draw() {
    for (const part of this.#parts) part.draw(this.#state === "open");
  }

  #decided() {
    const open = this.#parts.filter((part) => !part.label).length;
    if (open) this.#say("open", `${counted(open, "call")} left to decide.`);
    else this.#send();
  }

  async #send() {
    this.#say("sending", "Sending your answer");
    const answers = Object.fromEntries(this.#parts.map((part) => [part.id, part.answer]));
    try {
      const outcome = await this.#answer(answers);
      if (outcome?.already) this.#say("elsewhere", "Another device has answered already.");
      else this.#say("answered", this.#parts.map((part) => part.receipt).join(" · "));
    } catch (error) {
      for (const part of this.#parts) part.label = "";
      this.#say("open", "");
      setText(this.#problem, error?.message || "It could not be sent. Try again.");
      this.#problem.hidden = false;
    }
  }

  #say(state, words) {
    this.#state = state;
    this.element.dataset.state = state;
    this.element.setAttribute("aria-busy", String(state === "sending"));
    this.#problem.hidden = true;
    this.#note.hidden = !words;
    const isSending = state === "sending";
    const turning = isSending ? h("span", { class: "spinner", "aria-hidden": "true" }) : null;
    fill(this.#note, turning, words);
    this.#draw();
  }
}

/** One call and its possible answers. */
class Part {
  label = "";
  isSettled = false;
  #approval;
  #buttons;
  #decided;

  constructor(one, decided) {
    drawn += 1;
    const { approval } = one;
    this.id = one.id;
    this.#approval = approval;
    this.#decided = decided;
    const about = `approval-${drawn}-always`;
    const offered = one.options.map(({ label }) => label).filter((label) => isOffered(one, label));
    this.#buttons = offered.map((label) => this.#button(label, label === ALWAYS ? about : null));
    const [always] = this.#buttons.filter((button) => button.value === ALWAYS);
    const others = this.#buttons.filter((button) => button !== always);
    this.element = h("div", { class: "approval-part" },
      h("p", { class: "approval-title" }, visible(approval.agent || "The agent"), " wants to call ",
        h("code", { dir: "ltr" }, renderLiteral(approval.tool || one.header || "a tool")), "."),
      renderStranger(approval),
      renderCall(approval),
      renderFacts(approval),
      approval.isWhole ? null : h("p", { class: "approval-cut", role: "note" }, CUT),
      h("div", { class: "approval-acts" }, others),
      always && h("div", { class: "approval-always" }, always,
        h("p", { id: about }, "From now on allows: ", h("span", {}, renderLiteral(approval.always)))));
  }

  get answer() {
    return { options: [this.label], digest: this.#approval.digest };
  }

  get receipt() {
    if (this.label === ALLOW) return "Allowed once";
    return this.label === ALWAYS ? `Always allowed: ${this.#approval.always}` : "Denied";
  }

  draw(isOpen) {
    for (const button of this.#buttons) {
      const isReady = isOpen && (this.isSettled || button.value === DENY);
      button.setAttribute("aria-disabled", String(!isReady));
      button.setAttribute("aria-pressed", String(button.value === this.label));
    }
  }

  #button(label, about) {
    const kind = label === ALLOW ? "button primary" : "button";
    return h("button", {
      type: "button", class: kind, value: label, "aria-describedby": about,
      onClick: (event) => this.#choose(event.currentTarget),
      // A key that is held down answers once, and not the next question as well.
      onKeydown: (event) => { if (event.repeat) event.preventDefault(); },
    }, label);
  }

  #choose(button) {
    if (button.getAttribute("aria-disabled") === "true") return;
    this.label = button.value;
    this.#decided();
  }
}

/** A call that is not shown in full can only be denied, and "Always" says what it would allow. */
function isOffered({ approval }, label) {
  if (label === DENY) return true;
  return approval.isWhole && (label !== ALWAYS || Boolean(approval.always));
}

function renderStranger({ forOwner, requestedBy }) {
  if (!forOwner) return null;
  return h("p", { class: "approval-stranger" }, "Asked for by ",
    h("code", { dir: "ltr" }, renderLiteral(requestedBy || "another person")), ", who is not you.");
}

/** Shows the whole call in a box that scrolls by itself, and that says when there is more of it. */
function renderCall({ call, isWhole }) {
  const lines = call.split("\n").length;
  const pre = h("pre", {
    class: "literal", dir: "ltr", tabindex: "0", role: "region",
    "aria-label": isWhole ? `The whole call, ${counted(lines, "line")}` : "Part of the call",
  }, renderLiteral(call));
  const more = h("span", {}, "There is more: scroll to see all of it.");
  const all = h("button", { type: "button", class: "show-all quiet", onClick: () => {
    pre.classList.add("is-open");
    line.hidden = true;
    pre.focus();
  } }, lines > 1 ? `Show all ${counted(lines, "line")}` : "Show all");
  const line = h("p", { class: "literal-more", hidden: true }, more, all);
  const look = () => {
    if (pre.classList.contains("is-open")) return;
    const below = pre.scrollHeight - pre.scrollTop - pre.clientHeight;
    line.hidden = pre.scrollHeight <= pre.clientHeight + 1;
    setText(more, below > 2 ? "There is more: scroll to see all of it." : "This is the end.");
  };
  pre.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(pre);
  return h("div", { class: "literal-box" }, pre, line);
}

function renderFacts({ cwd, env, reason }) {
  const rows = [
    cwd && ["Directory", h("code", { dir: "ltr" }, renderLiteral(cwd))],
    env.length > 0 && ["Environment", env.map(([name, value]) =>
      h("code", { class: "variable", dir: "ltr" }, renderLiteral(`${name}=${value}`)))],
    reason && ["Why it asks", h("span", {}, renderLiteral(reason))],
  ].filter(Boolean);
  if (!rows.length) return null;
  return h("dl", { class: "approval-facts" },
    rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
