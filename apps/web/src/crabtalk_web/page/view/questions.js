// Questions that wait in a conversation, each in its form until some device has answered.

import { arrange, h } from "../draw/dom.js";
import { renderQuestion } from "../rows/question.js";
import { announce, notify } from "./notices.js";

export class QuestionShelf {
  #session;
  #forms = new Map();

  constructor(session) {
    this.#session = session;
    this.element = h("div", { class: "log-questions" });
  }

  draw() {
    const waiting = this.#session.questions;
    const there = new Set(waiting.map((question) => question.id));
    for (const id of this.#forms.keys()) if (!there.has(id)) this.#forms.delete(id);
    arrange(this.element, waiting.map((question) => this.#form(question)));
  }

  #form(question) {
    const kept = this.#forms.get(question.id);
    if (kept) return kept;
    const form = renderQuestion(question, {
      answer: (answers) => this.#settle(this.#session.answer(question.id, answers), "Answered."),
      dismiss: () => this.#settle(this.#session.dismiss(question.id), "Dismissed."),
    });
    this.#forms.set(question.id, form);
    const first = question.questions[0];
    if (first) announce(`${this.#session.agent} asks: ${first.question}`);
    return form;
  }

  async #settle(promise, done) {
    const outcome = await promise;
    if (outcome?.already) notify("Another device has answered already.");
    else announce(done);
    return outcome;
  }
}
