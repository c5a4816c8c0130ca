// Markdown on the page. A growing text is drawn again only from its last block on.

import { parseBlocks } from "./blocks.js";
import { updateCode } from "./code.js";
import { h } from "./dom.js";
import { direction, inlines, languageOf, renderBlock, withoutEnd } from "./elements.js";
import { grow } from "./growing.js";
import { parseInlines } from "./inlines.js";
import { plainText } from "./tree.js";
import { visible } from "./visible.js";

// Longer texts are shown as plain text: prose is never so long.
const LONGEST = 200_000;

/**
 * Returns an element that shows a text. `hasBreaks` keeps line ends; the copy button of a code
 * block calls `copy(text)`.
 */
export function renderMarkdown(text, options = {}) {
  const element = h("div", { class: "markdown" });
  updateMarkdown(element, text, options);
  return element;
}

// For each element: the text, its blocks, and its definitions.
const shown = new WeakMap();

/** Updates an element of renderMarkdown to another text; fast if the text only grew. */
export function updateMarkdown(element, text, options = {}) {
  const before = shown.get(element);
  if (before?.text === text) return;
  const way = direction(text);
  if (way === null) element.removeAttribute("dir");
  else element.dir = way;
  if (text.length > LONGEST) {
    showPlain(element, text);
    return;
  }
  // Reference definitions change what precedes them, so such a text is drawn again.
  const isGrown = before !== undefined && before.isSimple && text.startsWith(before.text);
  const kept = isGrown ? before.settled : 0;
  const from = kept ? before.blocks[kept].start : 0;
  const parsed = parseBlocks(text.slice(from));
  if (kept && parsed.definitions.size) {
    shown.delete(element);
    updateMarkdown(element, text, options);
    return;
  }
  const old = isGrown && !parsed.definitions.size ? before.blocks : [];
  const blocks = old.slice(0, kept);
  const outline = kept ? [...blocks[kept - 1].outline] : [];
  const context = { definitions: parsed.definitions, direction: way, outline, ...options };
  parsed.blocks.forEach((block, at) => {
    const next = parsed.blocks[at + 1];
    const source = text.slice(from + block.start, next ? from + next.start : text.length);
    blocks.push(placed(old[kept + at], block, source, from + block.start, context));
  });
  replace(element, old, blocks, kept);
  remember(element, text, blocks, kept, parsed);
}

/**
 * Returns one line of markdown, such as the title of a tool call. No links, because it is inside a
 * button.
 */
export function renderInline(text) {
  const nodes = parseInlines(text.slice(0, 2000).replace(/\s+/g, " "));
  return h("span", { class: "inline", dir: "auto" }, inlines(nodes, { isInLink: true }));
}

/** Returns the text on one line, without marks. */
export function plainLine(text) {
  return plainText(parseInlines(text.slice(0, 2000).replace(/\s+/g, " ")));
}

function showPlain(element, text) {
  shown.delete(element);
  element.replaceChildren(h("p", { class: "as-written" }, visible(text)));
}

function remember(element, text, blocks, kept, parsed) {
  let settled = Math.max(0, Math.min(kept + parsed.settled, blocks.length - 1));
  while (blocks[settled]?.isJoined) settled -= 1;
  shown.set(element, { text, blocks, settled, isSimple: parsed.definitions.size === 0 });
}

/** Returns the element of a block; an unchanged block, or code that grew, keeps its element. */
function placed(old, block, source, start, context) {
  const before = String(context.outline);
  if (old?.type === block.type && old.source === source && old.before === before) {
    context.outline.splice(0, Infinity, ...old.outline);
    return { ...old, start, isJoined: block.isJoined };
  }
  const language = block.type === "code" ? languageOf(block.info) : "";
  const { type, isJoined } = block;
  let element = old?.type === type && old.language === language ? old.element : null;
  if (element !== null && type === "code") updateCode(element, withoutEnd(block.text));
  else if (element === null || !grow(element, old.block, block, context)) {
    element = renderBlock(block, context);
  }
  const outline = [...context.outline];
  return { type, isJoined, language, source, start, before, outline, element, block };
}

function replace(element, old, blocks, kept) {
  if (!old.length) {
    element.replaceChildren(...blocks.map((block) => block.element));
    return;
  }
  for (let at = kept; at < Math.max(old.length, blocks.length); at += 1) {
    const [was, is] = [old[at]?.element, blocks[at]?.element];
    if (was === is) continue;
    if (was === undefined) element.append(is);
    else if (is === undefined) was.remove();
    else was.replaceWith(is);
  }
}
