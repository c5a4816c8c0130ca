// Pending questions of a conversation, each as a form until a device has answered.

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
    // Keep the focus here, because its button is gone.
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

/** A form is drawn again when its calls have changed, or can now be seen in full. */
function keyOf({ id, questions }) {
  const shown = questions.map(({ approval }) => approval && [approval.digest, approval.isWhole]);
  return JSON.stringify([id, shown]);
}

/** The announcement of a new question. A call is read where it is shown. */
export function spokenOf(agent, { questions, isApproval }) {
  if (!isApproval) return `${agent} asks: ${plainLabel(questions[0].question)}`;
  const calls = questions.map(({ approval, header }) => approval.tool || header || "a tool");
  const [{ approval }] = questions;
  const by = approval.forOwner ? `, for ${approval.requestedBy || "another person"}` : "";
  return plainLabel(`${agent} asks for permission to call ${calls.join(", ")}${by}`);
}
