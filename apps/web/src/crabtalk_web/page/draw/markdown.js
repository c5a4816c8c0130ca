// Markdown as elements. What is HTML in it is shown as it is written; links lead to the web and to
// mail only; pictures are links, and nothing is loaded. A text that grows is laid out anew from the
// last block on, and what stands before that is not touched.

import { isMisleading, linked, safeAddress } from "./addresses.js";
import { parseBlocks } from "./blocks.js";
import { renderCode, updateCode } from "./code.js";
import { h } from "./dom.js";
import { parseInlines, plainText } from "./inlines.js";
import { plainLabel, visible } from "./visible.js";

// Longer texts are shown as they are written: what was meant as prose is never so long.
const LONGEST = 200_000;

/**
 * An element that shows a text. `hasBreaks` keeps the ends of lines; `copy(text)` is what the
 * button of a block of code calls.
 */
export function renderMarkdown(text, options = {}) {
  const element = h("div", { class: "markdown" });
  updateMarkdown(element, text, options);
  return element;
}

// What was laid out in an element: the text, its blocks, and the definitions in it.
const shown = new WeakMap();

/** Brings an element of renderMarkdown to another text; cheap where the text only grew. */
export function updateMarkdown(element, text, options = {}) {
  const before = shown.get(element);
  if (before?.text === text) return;
  turn(element, text);
  if (text.length > LONGEST) {
    showPlain(element, text);
    return;
  }
  // Definitions of references change what stands before them: such a text is laid out anew.
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
  const context = { definitions: parsed.definitions, ...options };
  parsed.blocks.forEach((block, at) => {
    const next = parsed.blocks[at + 1];
    const source = text.slice(from + block.start, next ? from + next.start : text.length);
    blocks.push(placed(old[kept + at], block, source, from + block.start, context));
  });
  replace(element, old, blocks, kept);
  remember(element, text, blocks, kept, parsed);
}

/** One line of markdown, such as the title of a tool's call. No links: it stands in a button. */
export function renderInline(text) {
  const nodes = parseInlines(text.slice(0, 2000).replace(/\s+/g, " "));
  return h("span", { class: "inline", dir: "auto" }, inlines(nodes, { isInLink: true }));
}

/** What a text says on one line, without marks. */
export function plainLine(text) {
  return plainText(parseInlines(text.slice(0, 2000).replace(/\s+/g, " ")));
}

/** The direction of its first letter. `dir=auto` would look for it anew with every block. */
function turn(element, text) {
  const first = /\p{L}/u.exec(text.slice(0, 1000));
  const isLeftwards = first !== null && /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(first[0]);
  const direction = isLeftwards ? "rtl" : "ltr";
  if (element.dir !== direction) element.dir = direction;
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

/** The element of a block; one that shows the same already, or code that grew, stays in place. */
function placed(old, block, source, start, context) {
  const isSame = old?.type === block.type && old.source === source;
  if (isSame) return { ...old, start, isJoined: block.isJoined };
  const language = block.type === "code" ? languageOf(block.info) : "";
  if (old?.type === "code" && block.type === "code" && old.language === language) {
    updateCode(old.element, withoutEnd(block.text));
    return { ...old, source, start };
  }
  const { type, isJoined } = block;
  return { type, isJoined, language, source, start, element: renderBlock(block, context) };
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

// ── Blocks ─────────────────────────────────────────────────────────────────────────────────────

function renderBlock(block, context, isTight = false) {
  switch (block.type) {
    case "heading":
      // Below the headings of the page itself, so that a screen reader's outline stays whole.
      return h(`h${Math.min(block.level + 2, 6)}`, { class: `heading-${block.level}` },
        inlines(parseInlines(block.text, context.definitions), context));
    case "quote":
      return h("blockquote", {}, block.children.map((child) => renderBlock(child, context)));
    case "list":
      return renderList(block, context);
    case "code":
      return renderCode(withoutEnd(block.text), languageOf(block.info), context);
    case "rule":
      return h("hr");
    case "table":
      return renderTable(block, context);
    default: {
      const nodes = inlines(parseInlines(block.text, context.definitions), context);
      return isTight ? h("span", { class: "tight" }, nodes) : h("p", {}, nodes);
    }
  }
}

const withoutEnd = (text) => (text.endsWith("\n") ? text.slice(0, -1) : text);
const languageOf = (info) => (/^[^\s,{]*/.exec(info)?.[0] ?? "").toLowerCase().slice(0, 40);

function renderList(list, context) {
  const items = list.children.map((item) => renderItem(item, !list.isLoose, context));
  const isTasks = items.some((item) => item.classList.contains("task"));
  const props = { class: isTasks ? "tasks" : null };
  if (!list.isOrdered) return h("ul", props, items);
  return h("ol", { ...props, start: list.first === 1 ? null : list.first }, items);
}

const TASK = /^\[([ xX])\](?=\s)/;

function renderItem(item, isTight, context) {
  const first = item.children[0];
  const task = first?.type === "paragraph" ? TASK.exec(first.text) : null;
  if (task === null) {
    return h("li", {}, item.children.map((child) => renderBlock(child, context, isTight)));
  }
  const isDone = task[1] !== " ";
  const said = { ...first, text: first.text.slice(3).trimStart() };
  const box = h("span", {
    class: isDone ? "task-box done" : "task-box",
    role: "img",
    "aria-label": isDone ? "Done:" : "Not done:",
  });
  const rest = [said, ...item.children.slice(1)];
  return h("li", { class: "task" }, box,
    h("div", {}, rest.map((child) => renderBlock(child, context, isTight))));
}

function renderTable(table, context) {
  const row = (tag, cells) =>
    h("tr", {}, cells.map((cell, at) =>
      h(tag, { class: table.align[at] || null, scope: tag === "th" ? "col" : null },
        inlines(parseInlines(cell, context.definitions), context))));
  const body = table.rows.length ? h("tbody", {}, table.rows.map((cells) => row("td", cells))) : null;
  // It scrolls by itself, and by keyboard.
  return h("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
    h("table", {}, h("thead", {}, row("th", table.head)), body));
}

// ── Inside blocks ──────────────────────────────────────────────────────────────────────────────

const TAGS = { emphasis: "em", strong: "strong", strike: "del" };

function inlines(nodes, context) {
  return nodes.map((node) => inline(node, context));
}

function inline(node, context) {
  switch (node.type) {
    case "text":
      return context.isInLink ? visible(node.parts.join("")) : withAddresses(node.parts.join(""));
    case "code":
      return h("code", {}, visible(node.text, { isCode: true }));
    case "break":
      return h("br");
    case "soft":
      return context.hasBreaks ? h("br") : "\n";
    case "link":
    case "image":
      return renderLink(node, context);
    default:
      return h(TAGS[node.type], {}, inlines(node.children, context));
  }
}

function withAddresses(text) {
  if (!/[@:]|www\./i.test(text)) return visible(text);
  return [...linked(text)].map((part) =>
    part.url === null ? visible(part.text) : anchor(part.url, visible(part.text), part.text),
  );
}

function renderLink(node, context) {
  const isImage = node.type === "image";
  const text = plainText(node.children);
  const said = node.children.length
    ? inlines(node.children, { ...context, isInLink: true })
    : visible(isImage ? "Image" : node.address);
  if (context.isInLink) return said;
  const url = safeAddress(node.address);
  if (url === null) {
    // A path on somebody's machine, or an address that leads nowhere good: its text, and what it is.
    const name = isImage ? "no-link is-picture" : "no-link";
    return h("span", { class: name, title: plainLabel(node.address.slice(0, 500)) || null }, said);
  }
  return anchor(url, said, text, { class: isImage ? "picture-link" : null, note: node.title });
}

function anchor(url, said, text, { class: name = null, note = "" } = {}) {
  const props = {
    class: name,
    href: url.href,
    rel: "noopener noreferrer",
    target: "_blank",
    title: note ? `${plainLabel(note)}\n${url.href}` : url.href,
  };
  if (!isMisleading(text, url)) return h("a", props, said);
  return h("a", props, said, h("span", { class: "leads-to" }, ` (${url.host})`));
}
