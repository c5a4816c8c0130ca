// Completion at the start of a message: @ for guests, / for skills. The list is above the text; the
// focus stays in the text.

import { h } from "../draw/dom.js";

const MOST = 8;

export class Completion {
  #textarea;
  #choices;
  #found = [];
  #at = 0;

  /** @param choices returns the names for a sign, "@" or "/" */
  constructor(textarea, choices) {
    this.#textarea = textarea;
    this.#choices = choices;
    this.element = h("ul", {
      class: "plain completion", id: "completion", hidden: true,
      role: "listbox", "aria-label": "Completions",
    });
    textarea.setAttribute("aria-autocomplete", "list");
    textarea.setAttribute("aria-controls", "completion");
    textarea.addEventListener("blur", () => this.hide());
  }

  get isOpen() {
    return !this.element.hidden;
  }

  /** Call it after each change of the text. */
  look() {
    const { value, selectionStart, selectionEnd } = this.#textarea;
    const typed = /^([@/])(\S*)$/.exec(value.slice(0, selectionStart));
    if (!typed || selectionStart !== selectionEnd) return this.hide();
    const [, sign, start] = typed;
    this.#found = matching(this.#choices(sign), start).map((name) => `${sign}${name}`);
    if (!this.#found.length || this.#found.includes(typed[0])) return this.hide();
    this.#at = 0;
    return this.#draw();
  }

  hide() {
    this.element.hidden = true;
    this.#textarea.removeAttribute("aria-activedescendant");
  }

  /** @returns {boolean} whether the key was handled by the list */
  key(event) {
    if (!this.isOpen) return false;
    if (event.key === "ArrowDown") this.#move(1);
    else if (event.key === "ArrowUp") this.#move(-1);
    else if (event.key === "Enter" || event.key === "Tab") this.#take(this.#found[this.#at]);
    else if (event.key === "Escape") this.hide();
    else return false;
    event.preventDefault();
    return true;
  }

  #move(step) {
    this.#at = (this.#at + step + this.#found.length) % this.#found.length;
    this.#draw();
  }

  #take(text) {
    const { value, selectionStart } = this.#textarea;
    this.#textarea.setRangeText(`${text} `, 0, selectionStart, "end");
    if (value !== this.#textarea.value) this.#textarea.dispatchEvent(new Event("input"));
    this.hide();
  }

  #draw() {
    this.element.replaceChildren(...this.#found.map((text, index) => h("li", {
      class: "completion-item", id: `completion-${index}`, role: "option",
      "aria-selected": String(index === this.#at),
      // Before the text loses the focus, which would close the list.
      onpointerdown: (event) => {
        event.preventDefault();
        this.#take(text);
      },
    }, text)));
    this.element.hidden = false;
    this.#textarea.setAttribute("aria-activedescendant", `completion-${this.#at}`);
  }
}

/** Names that begin with the text first, then names that contain it. */
function matching(names, start) {
  const wanted = start.toLowerCase();
  const places = names.map((name) => [name, name.toLowerCase().indexOf(wanted)]);
  const begins = places.filter(([, place]) => place === 0);
  const holds = places.filter(([, place]) => place > 0);
  return [...begins, ...holds].slice(0, MOST).map(([name]) => name);
}
