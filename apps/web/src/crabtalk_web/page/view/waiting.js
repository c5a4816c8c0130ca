// Pending questions of all conversations, one line each, above the list.

import { arrange, h, setText } from "../draw/dom.js";
import { icon } from "./icons.js";
import { spokenOf } from "./questions.js";

export class WaitingList {
  #items = new Map();
  #list = h("ul", { class: "plain" });

  constructor() {
    this.element = h("section", { class: "waiting", "aria-label": "Needs your answer",
      hidden: true }, h("h2", {}, "Needs your answer"), this.#list);
  }

  draw(sessions) {
    const waiting = sessions.filter((session) => !session.isSealed).flatMap((session) =>
      session.questions.map((question) => ({ key: `${session.id} ${question.id}`, session,
        question })));
    const there = new Set(waiting.map(({ key }) => key));
    for (const key of this.#items.keys()) if (!there.has(key)) this.#items.delete(key);
    arrange(this.#list, waiting.map((one) => this.#item(one)));
    this.element.hidden = waiting.length === 0;
  }

  #item({ key, session, question }) {
    const item = this.#items.get(key) ?? newItem(session, question);
    this.#items.set(key, item);
    setText(item.words, spokenOf(session.agent, question));
    return item.element;
  }
}

function newItem(session, question) {
  const words = h("span", { class: "waiting-words" });
  const link = h("a", { class: "waiting-item", href: `/s/${session.id}` },
    icon(question.isApproval ? "key" : "question"), words);
  return { element: h("li", {}, link), words };
}
