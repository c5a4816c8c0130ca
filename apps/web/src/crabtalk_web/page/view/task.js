// Something that takes a moment and may fail: a button that says what is being done meanwhile, and a
// sentence where it failed.

import { h } from "../draw/dom.js";

/** A line that says what is being done. */
export function doing(text) {
  return h("p", { class: "doing", role: "status" }, h("span", { class: "spinner", "aria-hidden": "true" }), text);
}

/** Where a failure is told; empty, it is not there. */
export function problemLine() {
  return h("p", { class: "problem", role: "alert", hidden: true });
}

/**
 * Runs it with the control disabled and named for what it does. Failures are told in `problem`.
 * @returns {Promise<boolean>} whether it was done
 */
export async function attempt(button, label, problem, run) {
  const before = [...button.childNodes];
  const spinner = h("span", { class: "spinner", "aria-hidden": "true" });
  const timer = setTimeout(() => button.replaceChildren(spinner, label), 150);
  button.setAttribute("aria-disabled", "true");
  button.setAttribute("aria-busy", "true");
  problem.hidden = true;
  try {
    await run();
    return true;
  } catch (error) {
    problem.textContent = sentence(error);
    problem.hidden = false;
    return false;
  } finally {
    clearTimeout(timer);
    button.replaceChildren(...before);
    button.removeAttribute("aria-disabled");
    button.removeAttribute("aria-busy");
  }
}

export function isBusy(button) {
  return button.getAttribute("aria-busy") === "true";
}

export function sentence(error) {
  const text = error?.message || "That did not work.";
  return /[.?]$/.test(text) ? text : `${text}.`;
}
