// Questions that wait in a conversation, each in its form until some device has answered.

import { arrange, h } from "../draw/dom.js";
import { plainLabel } from "../draw/visible.js";
import { renderQuestion, settleApproval } from "../rows/rows.js";
import { announce, notify } from "./notices.js";

export class QuestionShelf {
  #session;
  #forms = new Map();

  constructor(session) {
    this.#session = session;
    this.element = h("div", { class: "log-questions", tabindex: "-1" });
  }

  draw() {
    const waiting = this.#session.questions;
    const there = new Set(waiting.map(keyOf));
    const gone = [...this.#forms.keys()].filter((id) => !there.has(id));
    const hadFocus = this.element.contains(document.activeElement);
    for (const id of gone) this.#forms.delete(id);
    arrange(this.element, waiting.map((question) => this.#form(question)));
    if (!gone.length) return;
    for (const form of this.#forms.values()) settleApproval(form);
    // Focus stays here rather than with a button that has gone.
    if (hadFocus && !this.element.contains(document.activeElement)) {
      this.element.focus({ preventScroll: true });
    }
  }

  #form(question) {
    const kept = this.#forms.get(keyOf(question));
    if (kept) return kept;
    const form = renderQuestion(question, {
      answer: (answers) => this.#settle(this.#session.answer(question.id, answers), "Answered."),
      dismiss: () => this.#settle(this.#session.dismiss(question.id), "Dismissed."),
    });
    this.#forms.set(keyOf(question), form);
    announce(spokenOf(this.#session.agent, question));
    return form;
  }

  async #settle(promise, done) {
    const outcome = await promise;
    if (outcome?.already) notify("Another device has answered already.");
    else announce(done);
    return outcome;
  }
}

/** A form is drawn anew when the calls it shows are others, or can be seen whole by now. */
function keyOf({ id, questions }) {
  const shown = questions.map(({ approval }) => approval && [approval.digest, approval.isWhole]);
  return JSON.stringify([id, shown]);
}

/** What is said of a question when it comes. A call is read where it stands. */
export function spokenOf(agent, { questions, isApproval }) {
  if (!isApproval) return `${agent} asks: ${plainLabel(questions[0].question)}`;
  const calls = questions.map(({ approval, header }) => approval.tool || header || "a tool");
  const [{ approval }] = questions;
  const by = approval.forOwner ? `, for ${approval.requestedBy || "somebody else"}` : "";
  return plainLabel(`${agent} asks for permission to call ${calls.join(", ")}${by}`);
}
