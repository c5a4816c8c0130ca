// Syntax colouring: splits a text into tokens without changing it, and draws code blocks with a
// copy button.

import { h } from "./dom.js";
import { rulesOf } from "./languages.js";
import { visible } from "./visible.js";

// Longer code, and code with longer lines, is shown without colours.
const LONGEST = 150_000;
const LONGEST_LINE = 10_000;

/**
 * Returns the tokens of a text in order; joined they are the text.
 * @returns {{name: string, text: string}[]}
 */
export function tokens(text, language) {
  const rules = rulesOf(language);
  if (rules === null || text.length > LONGEST || hasLongLine(text)) return [{ name: "", text }];
  const found = [];
  let plain = 0; // start of the text without a token
  let at = 0;
  while (at < text.length) {
    rules.pattern.lastIndex = at;
    const match = rules.pattern.exec(text);
    if (match === null || match[0] === "") {
      at += 1;
      continue;
    }
    const name = rules.classes[match.indexOf(match[0], 1) - 1];
    if (name) {
      if (at > plain) found.push({ name: "", text: text.slice(plain, at) });
      found.push({ name, text: match[0] });
      plain = at + match[0].length;
    }
    at += match[0].length;
  }
  if (plain < text.length) found.push({ name: "", text: text.slice(plain) });
  return found;
}

function hasLongLine(text) {
  for (let at = 0; at < text.length; ) {
    const end = text.indexOf("\n", at);
    if ((end === -1 ? text.length : end) - at > LONGEST_LINE) return true;
    if (end === -1) return false;
    at = end + 1;
  }
  return false;
}

/** Returns nodes that show a text in colours. */
export const highlighted = (text, language) => tokens(text, language).map(nodesOf);

function nodesOf({ name, text }) {
  const nodes = visible(text, { isCode: true });
  return name ? [h("span", { class: `code-${name}` }, nodes)] : nodes;
}

/** Returns a code block: its language, a copy button, and the code. */
export function renderCode(text, language = "", { copy = null, label = "" } = {}) {
  const code = h("code", { dir: "ltr" });
  colour(code, text, language);
  const name = language ? `Code, ${language}` : "Code";
  const block = h("div", { class: "code-block", dataset: { language } },
    h("div", { class: "code-bar" },
      h("span", { class: "code-language" }, label || language),
      copy ? copyButton(() => textOf(block), copy) : null),
    // It scrolls by itself, also by keyboard.
    h("pre", { tabindex: "0", role: "group", "aria-label": name }, code));
  texts.set(block, text);
  return block;
}

const texts = new WeakMap();
const textOf = (block) => texts.get(block);

/** Updates the same block to longer or different code. */
export function updateCode(block, text) {
  const before = texts.get(block);
  if (before === text) return;
  texts.set(block, text);
  const code = block.querySelector("code");
  // While long code is being written, it only grows at its end; it gets its colours when it is
  // complete.
  if (before !== undefined && text.length > 20_000 && text.startsWith(before)) {
    code.append(...visible(text.slice(before.length), { isCode: true }));
    coloured.delete(code);
    return;
  }
  colour(code, text, block.dataset.language);
}

const coloured = new WeakMap(); // the tokens that a block shows, with their nodes

/** Draws the tokens of a text; equal tokens at the beginning keep their nodes. */
function colour(code, text, language) {
  const old = coloured.get(code) ?? [];
  const fresh = tokens(text, language);
  let same = 0;
  while (old[same]?.text === fresh[same]?.text && old[same]?.name === fresh[same]?.name) {
    if (same >= fresh.length) break;
    same += 1;
  }
  const kept = old.slice(0, same);
  if (same) for (const { nodes } of old.slice(same)) nodes.forEach((node) => node.remove());
  else code.replaceChildren();
  for (const token of fresh.slice(same)) {
    const nodes = nodesOf(token).map((node) =>
      typeof node === "string" ? document.createTextNode(node) : node);
    code.append(...nodes);
    kept.push({ ...token, nodes });
  }
  coloured.set(code, kept);
}

/** Returns a button that shows for a moment that it has copied. */
export function copyButton(text, copy, label = "Copy") {
  const button = h("button", { type: "button", class: "copy-button quiet", onClick: async () => {
    await copy(text());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  } }, label);
  return button;
}
