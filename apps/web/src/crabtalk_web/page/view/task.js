// An action that takes a moment and may fail: its button shows the progress, and an error is shown
// as a sentence.

import { h } from "../draw/dom.js";
import { spinner } from "./controls.js";

// Faster actions show no progress.
const BLINK_MS = 150;

/** A line that shows the progress. */
export function doing(text) {
  return h("p", { class: "doing", role: "status" }, spinner(), text);
}

/** Where an error is shown; hidden while empty. */
export function problemLine() {
  return h("p", { class: "problem", role: "alert", hidden: true });
}

export function tell(problem, error) {
  problem.textContent = sentence(error);
  problem.hidden = false;
}

/**
 * Runs it once at a time, with its control showing the progress. Errors are shown in `problem`.
 * @returns {Promise<boolean>} whether it succeeded
 */
export async function attempt(button, label, problem, run) {
  if (button.getAttribute("aria-busy") === "true") return false;
  const before = [...button.childNodes];
  const timer = setTimeout(() => button.replaceChildren(spinner(), label), BLINK_MS);
  button.setAttribute("aria-disabled", "true");
  button.setAttribute("aria-busy", "true");
  problem.hidden = true;
  try {
    await run();
    return true;
  } catch (error) {
    tell(problem, error);
    return false;
  } finally {
    clearTimeout(timer);
    button.replaceChildren(...before);
    button.removeAttribute("aria-disabled");
    button.removeAttribute("aria-busy");
  }
}

export function sentence(error) {
  const text = error?.message || "That did not work.";
  return /[.?]$/.test(text) ? text : `${text}.`;
}
