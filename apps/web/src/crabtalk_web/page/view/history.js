// The top of a conversation: its beginning, a spinner for older rows, or why they cannot be loaded.

import { h, setText } from "../draw/dom.js";
import { button, spinner } from "./controls.js";
import { crab } from "./icons.js";
import { sentence } from "./task.js";

export class HistoryLine {
  #session;
  #text = h("span", {});
  #bar = h("progress", { class: "progress", max: "1", "aria-label": "History loaded" });
  #again;
  #spinner = spinner();

  constructor(session) {
    this.#session = session;
    this.#again = button("Try again", () => session.loadOlder().catch(() => undefined), "small");
    this.line = h("div", { class: "log-history" },
      h("p", { class: "doing" }, this.#spinner, this.#text, this.#again), this.#bar);
    this.empty = h("div", { class: "empty" }, crab(),
      h("p", {}, `Nothing said yet. Write to ${session.agent} below.`));
    this.draw();
  }

  draw() {
    const { history, story, questions, live } = this.#session;
    const isEmpty = !story.rows.length && history.state === "idle" && !history.hasOlder;
    this.empty.hidden = !isEmpty || questions.length > 0 || Boolean(live);
    const isLoading = history.state === "loading" || (history.state === "idle" && history.hasOlder);
    const isFailed = history.state === "failed";
    this.line.hidden = isEmpty;
    this.line.classList.toggle("late", isLoading);
    this.#spinner.hidden = !isLoading;
    this.#again.hidden = !isFailed;
    this.#bar.hidden = !isLoading || !history.total;
    this.#bar.value = history.total ? Math.min(1, history.loaded / history.total) : 0;
    setText(this.#text, told(history, isLoading, isFailed));
  }
}

function told(history, isLoading, isFailed) {
  if (isFailed) {
    const why = history.problem ? ` ${sentence({ message: history.problem })}` : "";
    return `Older messages could not be loaded.${why}`;
  }
  if (!isLoading) return "The beginning";
  if (!history.total) return "Loading";
  const [loaded, total] = [history.loaded, history.total].map((count) => count.toLocaleString());
  return `Loading older messages: ${loaded} of ${total}`;
}
