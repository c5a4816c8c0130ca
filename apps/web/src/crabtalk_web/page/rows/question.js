// Questions of agents: a form with a part for each of them. The first device to answer counts; on
// the others the person sees that it was answered.

import { fill, h } from "../draw/dom.js";
import { visible } from "../draw/visible.js";
import { renderApproval } from "./approval.js";

let drawn = 0; // number of forms, for unique field names

/**
 * @param {object} question {id, questions: [{id, header, question, options, multiSelect, …}]}
 * @param {{answer: Function, dismiss: Function}} acts `answer(answers)` with {questionId: {options:
 * [label], custom?: text}}; both may return {already: true}.
 * @returns {HTMLFormElement}
 */
export function renderQuestion(question, { answer, dismiss }) {
  if (question.isApproval) return renderApproval(question, { answer });
  drawn += 1;
  const fields = question.questions.map((one, at) => new Field(one, `question-${drawn}-${at}`));
  const name = question.questions.map((one) => one.header || "Question").join(", ");
  const send = h("button", { type: "submit", class: "button primary" }, "Answer");
  const leave = h("button", { type: "button", class: "button quiet" }, "Dismiss");
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const note = h("p", { class: "question-note", role: "status", hidden: true });
  const form = h("form", {
    class: "question",
    "aria-label": name || "Question",
    novalidate: true,
  }, fields.map((field) => field.element), problem, note,
  h("div", { class: "question-acts" }, send, leave));
  const all = new Answering(form, fields, { send, leave, problem, note });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const missing = fields.find((field) => field.isRequired && !field.isAnswered);
    if (missing) all.refuse(missing);
    else all.run("Sending your answer", "Answered.", () => answer(all.answers()));
  });
  leave.addEventListener("click", () => all.run("Dismissing", "Dismissed.", () => dismiss()));
  return form;
}

/** The form while it is being sent, and afterwards. */
class Answering {
  constructor(form, fields, parts) {
    this.form = form;
    this.fields = fields;
    Object.assign(this, parts);
  }

  answers() {
    return Object.fromEntries(this.fields.map((field) => [field.id, field.answer]));
  }

  refuse(field) {
    this.problem.textContent = "Choose or write an answer first.";
    this.problem.hidden = false;
    field.focus();
  }

  async run(doing, done, act) {
    if (this.form.dataset.state === "sending") return;
    this.state("sending", doing);
    try {
      const outcome = await act();
      if (outcome?.already) this.state("elsewhere", "Another device has answered already.");
      else this.state("answered", done);
    } catch (error) {
      this.state("open", "");
      this.problem.textContent = error?.message || "It could not be sent. Try again.";
      this.problem.hidden = false;
    }
  }

  state(name, words) {
    this.form.dataset.state = name;
    this.form.setAttribute("aria-busy", String(name === "sending"));
    this.problem.hidden = true;
    this.note.hidden = !words;
    const isSending = name === "sending";
    const turning = isSending ? h("span", { class: "spinner", "aria-hidden": "true" }) : null;
    fill(this.note, turning, words);
    // A button with focus keeps it while sending: it is marked as disabled, but is not.
    for (const field of this.fields) field.element.disabled = name !== "open";
    for (const button of [this.send, this.leave]) {
      button.setAttribute("aria-disabled", String(name !== "open"));
      button.hidden = name === "answered" || name === "elsewhere";
    }
  }
}

/** One of the questions: its options, and a field for free text. */
class Field {
  constructor(one, name) {
    this.id = one.id;
    // With multiple choice it is valid to choose nothing.
    this.isRequired = one.required ?? !one.multiSelect;
    this.isMultiple = Boolean(one.multiSelect);
    const options = (one.options ?? []).slice(0, 100);
    const allowsWords = one.allowCustom !== false || !options.length;
    this.inputs = options.map((option, at) => this.option(option, name, at));
    this.words = allowsWords ? this.wordsField(name, options.length > 0) : null;
    const text = one.question || one.header || "Question";
    this.element = h("fieldset", { class: "question-part" },
      h("legend", {},
        one.header ? h("span", { class: "question-header" }, visible(one.header)) : null,
        // Shown as plain text, line by line: markup would change what it says.
        h("span", { class: isLong(text) ? "question-text is-long" : "question-text" },
          visible(text))),
      this.inputs.map((input) => input.row), this.words?.row);
  }

  option(option, name, at) {
    const about = option.description ? `${name}-${at}-about` : null;
    const input = h("input", {
      type: this.isMultiple ? "checkbox" : "radio",
      name,
      id: `${name}-${at}`,
      value: String(at),
      "aria-describedby": about,
      onChange: () => { if (!this.isMultiple && this.words) this.words.input.value = ""; },
    });
    const row = h("div", { class: "option" }, input,
      h("label", { for: input.id }, visible(String(option.label))),
      about && h("p", { id: about, class: "option-about" }, visible(option.description)));
    return { input, row, label: String(option.label) };
  }

  wordsField(name, isOther) {
    const input = h("textarea", {
      class: "input",
      id: `${name}-words`,
      rows: isOther ? "1" : "3",
      maxlength: "20000",
      onInput: () => {
        // Free text replaces the single choice.
        if (this.isMultiple || !input.value) return;
        for (const one of this.inputs) one.input.checked = false;
      },
      onKeydown: (event) => {
        if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
        event.preventDefault();
        input.form.requestSubmit();
      },
    });
    const label = h("label", { for: input.id }, isOther ? "Something else" : "Your answer");
    return { input, row: h("div", { class: "option-words" }, label, input) };
  }

  get isAnswered() {
    return this.inputs.some((one) => one.input.checked) || Boolean(this.words?.input.value.trim());
  }

  get answer() {
    const options = this.inputs.filter((one) => one.input.checked).map((one) => one.label);
    const custom = this.words?.input.value.trim();
    return custom ? { options, custom } : { options };
  }

  focus() {
    (this.inputs[0]?.input ?? this.words?.input)?.focus();
  }
}

const isLong = (text) => text.includes("\n") || text.length > 200;
