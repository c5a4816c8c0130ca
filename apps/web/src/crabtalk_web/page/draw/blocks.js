// Block parser for markdown: splits lines into quotes, lists, headings, code, tables and
// paragraphs, as in CommonMark and GitHub's tables, except that HTML is text. A line is examined at
// most once for each level of nesting, so the time is linear in the length of the text.

import { unescaped } from "./entities.js";
import { Line } from "./lines.js";
import { closeCode, indentedGoesOn, markerOf, widthAfter, withoutClosing } from "./markers.js";
import { addRow, tableFrom } from "./tables.js";
import { definition } from "./targets.js";

const DEEPEST = 24;
const RULE = /^(?:\*{3,}|_{3,}|-{3,})$/;
const HEADING = /^(#{1,6})(?:[ \t]|$)/;
const FENCE = /^(?:(`{3,})([^`]*)|(~{3,})(.*))$/;
const UNDERLINE = /^(?:=+|-+)[ \t]*$/;

/**
 * @returns {{blocks: object[], definitions: Map<string, object>, settled: number}} Blocks have
 * `start`, the offset of their first line. The first `settled` of them do not change whatever is
 * appended to this text.
 */
export function parseBlocks(text, definitions = new Map()) {
  const parser = new Blocks(definitions);
  let at = 0;
  let settled = 0;
  while (at < text.length) {
    let end = text.indexOf("\n", at);
    settled = parser.settled;
    if (end === -1) end = text.length;
    else if (end === text.length - 1) settled = -1;
    const isReturned = text[end - 1] === "\r" && end > at;
    parser.read(new Line(text.slice(at, isReturned ? end - 1 : end)), at);
    at = end + 1;
  }
  if (settled === -1) settled = parser.settled;
  return { blocks: parser.finish(), definitions, settled };
}

class Blocks {
  constructor(definitions) {
    this.definitions = definitions;
    this.root = { type: "root", children: [], start: 0 };
    this.open = [this.root]; // from the root to the innermost open block
    this.number = 0;
    this.offset = 0;
  }

  /** The number of top-level blocks that are closed for good. */
  get settled() {
    return this.root.children.length - (this.open.length > 1 ? 1 : 0);
  }

  get tip() {
    return this.open[this.open.length - 1];
  }

  finish() {
    this.closeTo(1);
    return this.root.children;
  }

  read(line, offset) {
    this.number += 1;
    this.offset = offset;
    let matched = 1;
    while (matched < this.open.length) {
      const outcome = this.goesOn(this.open[matched], line, matched);
      if (outcome === "done") return;
      if (!outcome) break;
      matched += 1;
    }
    const deepest = this.open[matched - 1];
    if (deepest.type === "code" && matched === this.open.length) {
      this.addCode(deepest, line);
      return;
    }
    this.begin(line, matched);
  }

  // ── Does an open block go on in this line? ───────────────────────────────────────────────────

  goesOn(block, line, at) {
    switch (block.type) {
      case "quote":
        if (line.indent > 3 || line.char !== ">") return false;
        line.take(1);
        line.takeColumns(1);
        this.mark(at);
        return true;
      case "list":
        return true;
      case "item":
        return this.itemGoesOn(block, line);
      case "code":
        return block.fence ? this.fenceGoesOn(block, line, at) : indentedGoesOn(line);
      case "paragraph":
      case "table":
        return !line.isBlank;
      default:
        return false;
    }
  }

  itemGoesOn(item, line) {
    if (line.isBlank) {
      if (!item.children.length) return false;
      line.takeSpace();
      return true;
    }
    if (line.indent < item.width) return false;
    line.takeColumns(item.width);
    return true;
  }

  fenceGoesOn(code, line, at) {
    const { char, length } = code.fence;
    if (line.indent <= 3 && line.char === char) {
      const rest = line.visible().trimEnd();
      if (rest.length >= length && rest === char.repeat(rest.length)) {
        this.mark(at);
        this.closeTo(at);
        return "done";
      }
    }
    line.takeColumns(Math.min(line.indent, code.fence.indent));
    return true;
  }

  // ── What begins in this line? ────────────────────────────────────────────────────────────────

  begin(line, matched) {
    const wasOpen = this.open.length;
    let parent = matched; // how many open blocks stay open
    for (;;) {
      const container = this.open[parent - 1];
      if (container.type === "code") break;
      const begun = this.start(line, parent, container);
      if (begun === 0) break;
      if (begun < 0) return; // a block that takes the whole line
      parent = this.open.length;
    }
    const isLazy = parent === matched && matched < wasOpen && !line.isBlank;
    if (isLazy && this.tip.type === "paragraph") {
      this.addText(this.tip, line);
      return;
    }
    this.closeTo(parent);
    this.rest(line);
  }

  /**
   * 1: a container began, and the rest of the line is still to be parsed; -1: the line is used up;
   * 0: none.
   */
  start(line, parent, container) {
    if (line.isBlank) return 0;
    if (line.indent > 3) {
      const isLazy = this.tip.type === "paragraph";
      if (isLazy) return 0;
      line.takeColumns(4);
      this.closeTo(container.type === "table" ? parent - 1 : parent);
      this.add({ type: "code", info: "", lines: [], fence: null });
      this.addCode(this.tip, line);
      return -1;
    }
    const isDeep = parent > DEEPEST;
    switch (line.char) {
      case ">":
        return isDeep ? 0 : this.startQuote(line, parent);
      case "#":
        return this.startHeading(line, parent);
      case "`":
      case "~":
        return this.startFence(line, parent);
      case "=":
        return this.underline(line, parent, container);
      case "|":
      case ":":
        return this.startTable(line, parent, container);
      default:
        return this.startOther(line, parent, container, isDeep);
    }
  }

  startOther(line, parent, container, isDeep) {
    const char = line.char;
    const isDash = char === "-";
    if (isDash) {
      const done = this.underline(line, parent, container);
      if (done) return done;
      if (this.startTable(line, parent, container)) return -1;
    }
    const mayBeRule = isDash || char === "*" || char === "_";
    if (mayBeRule && RULE.test(line.visible().replace(/[ \t]+/g, ""))) {
      this.leave(parent);
      this.add({ type: "rule" });
      this.closeTo(this.open.length - 1);
      return -1;
    }
    return isDeep ? 0 : this.startItem(line, parent, container);
  }

  startQuote(line, parent) {
    line.take(1);
    line.takeColumns(1);
    this.leave(parent);
    this.add({ type: "quote", children: [] });
    return 1;
  }

  startHeading(line, parent) {
    const found = HEADING.exec(line.visible());
    if (found === null) return 0;
    this.leave(parent);
    const text = withoutClosing(line.visible().slice(found[1].length).trim());
    this.add({ type: "heading", level: found[1].length, text });
    this.closeTo(this.open.length - 1);
    return -1;
  }

  startFence(line, parent) {
    const found = FENCE.exec(line.visible());
    if (found === null) return 0;
    const marks = found[1] ?? found[3];
    const fence = { char: marks[0], length: marks.length, indent: line.indent };
    this.leave(parent);
    const info = unescaped((found[2] ?? found[4]).trim());
    this.add({ type: "code", info, lines: [], fence });
    return -1;
  }

  underline(line, parent, container) {
    if (container.type !== "paragraph" || !UNDERLINE.test(line.visible())) return 0;
    this.define(container);
    if (!container.lines.length) return 0;
    const level = line.char === "=" ? 1 : 2;
    Object.assign(container, { type: "heading", level, text: container.lines.join("\n").trim() });
    this.mark(parent - 1);
    this.open.length = parent - 1;
    return -1;
  }

  startTable(line, parent, container) {
    if (container.type !== "paragraph") return 0;
    this.define(container);
    if (!container.lines.length) return 0;
    const table = tableFrom(container.lines[container.lines.length - 1], line.visible());
    if (table === null) return 0;
    container.lines.pop();
    // Without the lines before it, its first line might have begun something else.
    table.isJoined = container.lines.length > 0;
    this.closeTo(parent - 1);
    this.add(table, container.lineStart);
    return -1;
  }

  startItem(line, parent, container) {
    const marker = markerOf(line, container.type === "paragraph");
    if (marker === null) return 0;
    const indent = line.indent;
    line.take(marker.length);
    const width = widthAfter(line);
    this.leave(parent);
    const list = this.tip;
    if (list.type !== "list" || list.mark !== marker.mark) {
      if (list.type === "list") this.closeTo(this.open.length - 1);
      const { mark, first } = marker;
      const isOrdered = first !== null;
      this.add({ type: "list", children: [], mark, first, isOrdered, isLoose: false });
    }
    this.add({ type: "item", children: [], width: indent + marker.length + width });
    return 1;
  }

  /** Handles a line that begins no block: a paragraph line, a table row, or nothing. */
  rest(line) {
    const tip = this.tip;
    if (line.isBlank) return;
    if (tip.type === "paragraph") {
      this.addText(tip, line);
    } else if (tip.type === "table") {
      addRow(tip, line.visible());
      this.mark(this.open.length - 1);
    } else {
      if (tip.type === "list") this.closeTo(this.open.length - 1);
      this.add({ type: "paragraph", lines: [], lineStart: this.offset });
      this.addText(this.tip, line);
    }
  }

  // ── Keeping the tree ─────────────────────────────────────────────────────────────────────────

  /**
   * Makes room for a block: closes blocks that do not continue, and those that cannot contain
   * others.
   */
  leave(parent) {
    this.closeTo(parent);
    if (this.tip.type === "paragraph" || this.tip.type === "table") {
      this.closeTo(this.open.length - 1);
    }
  }

  add(block, start = this.offset) {
    if (this.tip.type === "list" && block.type !== "item") this.closeTo(this.open.length - 1);
    const parent = this.tip;
    const isApart = parent.last !== undefined && parent.last < this.number - 1;
    const isOfList = parent.type === "list" || parent.type === "item";
    if (isApart && isOfList && parent.children.length) parent.isLoose = true;
    block.start = start;
    parent.children.push(block);
    this.open.push(block);
    this.mark(this.open.length - 1);
  }

  /** Marks the blocks down to this one as having content in this line. */
  mark(at) {
    for (let depth = 0; depth <= at; depth += 1) this.open[depth].last = this.number;
  }

  addText(paragraph, line) {
    paragraph.lines.push(line.visible());
    paragraph.lineStart = this.offset;
    this.mark(this.open.length - 1);
  }

  addCode(code, line) {
    code.lines.push(line.remainder());
    if (code.fence || !line.isBlank) this.mark(this.open.length - 1);
  }

  closeTo(count) {
    while (this.open.length > count) this.close(this.open.pop());
  }

  close(block) {
    if (block.type === "paragraph") this.closeParagraph(block);
    else if (block.type === "code") closeCode(block);
    else if (block.type === "list") block.isLoose ||= block.children.some((item) => item.isLoose);
  }

  closeParagraph(paragraph) {
    this.define(paragraph);
    if (paragraph.lines.length) {
      paragraph.text = paragraph.lines.join("\n").trimEnd();
    } else {
      // It consisted of definitions only, or became the heading of a table.
      const siblings = this.tip.children;
      siblings.splice(siblings.lastIndexOf(paragraph), 1);
    }
  }

  /** Parses reference definitions at the beginning of a paragraph. */
  define(paragraph) {
    if (!paragraph.lines.length || paragraph.lines[0][0] !== "[") return;
    let text = paragraph.lines.join("\n");
    let at = 0;
    for (;;) {
      const found = text[at] === "[" ? definition(text, at) : null;
      if (found === null) break;
      if (!this.definitions.has(found.label)) this.definitions.set(found.label, found);
      at = found.end;
    }
    if (at > 0) {
      text = text.slice(at);
      paragraph.lines = text.trim() ? text.split("\n") : [];
    }
  }
}
