// Draws parsed markdown as elements. HTML in a text is shown as text; links lead to web and mail
// addresses only; images become links, and nothing is loaded.

import { isMisleading, linked, safeAddress } from "./addresses.js";
import { renderCode } from "./code.js";
import { h } from "./dom.js";
import { parseInlines } from "./inlines.js";
import { plainText } from "./tree.js";
import { plainLabel, visible } from "./visible.js";

/** Returns the element of a block with its content. */
export function renderBlock(block, context, isTight = false) {
  switch (block.type) {
    case "heading":
      return h(`h${levelOf(block, context)}`,
        { class: `heading-${block.level}`, dir: turned(block.text, context) },
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
      const dir = turned(block.text, context);
      return isTight ? h("span", { class: "tight", dir }, nodes) : h("p", { dir }, nodes);
    }
  }
}

/** Headings start below those of the page, without skipping a level. */
function levelOf(block, { outline }) {
  while (outline.length && outline[outline.length - 1] >= block.level) outline.pop();
  outline.push(block.level);
  return Math.min(2 + outline.length, 6);
}

export const withoutEnd = (text) => (text.endsWith("\n") ? text.slice(0, -1) : text);
export const languageOf = (info) => (/^[^\s,{]*/.exec(info)?.[0] ?? "").toLowerCase().slice(0, 40);

function renderList(list, context) {
  const items = list.children.map((item) => renderItem(item, !list.isLoose, context));
  const isTasks = items.some((item) => item.classList.contains("task"));
  const props = { class: isTasks ? "tasks" : null };
  if (!list.isOrdered) return h("ul", props, items);
  return h("ol", { ...props, start: list.first === 1 ? null : list.first }, items);
}

const TASK = /^\[([ xX])\](?=\s)/;

/** Returns an item of a list. */
export function renderItem(item, isTight, context) {
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

/** Returns a row of a table, of `th` or `td`. */
export function renderTableRow(tag, texts, table, context) {
  return h("tr", {}, texts.map((text, at) =>
    h(tag, { class: table.align[at] || null, dir: turned(text, context) },
      inlines(parseInlines(text, context.definitions), context))));
}

function renderTable(table, context) {
  const row = (tag, texts) => renderTableRow(tag, texts, table, context);
  const body = h("tbody", {}, table.rows.map((texts) => row("td", texts)));
  // It scrolls by itself, also by keyboard.
  return h("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
    h("table", {}, h("thead", {}, row("th", table.head)), table.rows.length ? body : null));
}

// ── Inside blocks ──────────────────────────────────────────────────────────────────────────────

const TAGS = { emphasis: "em", strong: "strong", strike: "del" };

/** Returns the content of a block, as nodes. */
export function inlines(nodes, context) {
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
    // A local path, or an address that must not be a link: only its text is shown.
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

// ── Direction ──────────────────────────────────────────────────────────────────────────────────

/**
 * Returns "rtl" for a text whose first letter is of a right-to-left script, else null. Letting the
 * browser find out (`dir=auto`, `unicode-bidi: plaintext`) is slow in large documents.
 */
export function direction(text) {
  const first = /\p{L}/u.exec(text.slice(0, 1000));
  return first !== null && LEFTWARDS.test(first[0]) ? "rtl" : null;
}

const LEFTWARDS = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

/** Starts a block whose direction differs from that of the whole text. */
const turned = (text, context) => {
  const own = direction(text) ?? "ltr";
  return own === (context.direction ?? "ltr") ? null : own;
};
