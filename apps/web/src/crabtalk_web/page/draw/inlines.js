// Inline parser for markdown: code, emphasis, links, addresses and breaks. The text is read once
// from left to right into pieces, which then become a tree of limited depth.

import { plainAddress } from "./addresses.js";
import { Runs, runAt } from "./emphasis.js";
import { ENTITY, referred } from "./entities.js";
import { destination, isPunctuation, labelEnd, labelled, title } from "./targets.js";
import { tree } from "./tree.js";

// Limit of characters that references may add to a text, however often they are used.
const EXPANSION = 200_000;
const PLAIN = /[^\n`\[\]\\!<&*_~]+/y;
const POINTED = /<([a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^\s<>]*)>/y;
const MAIL = /<([\w.!#$%&'*+/=?^`{|}~-]{1,64}@[a-z0-9][a-z0-9-]{0,62}(?:\.[\w-]{1,63}){0,8})>/iy;

/**
 * Returns the tree of a text: nodes {type, text | children, address, title} where type is text,
 * code, break, soft, emphasis, strong, strike, link or image.
 */
export function parseInlines(text, definitions = new Map()) {
  return tree(new Inlines(text, definitions).pieces());
}

class Inlines {
  constructor(text, definitions) {
    this.text = text;
    this.definitions = definitions;
    this.at = 0;
    this.out = [];
    this.runs = new Runs();
    this.brackets = []; // possible link starts
    this.plainBelow = 0; // how many of these cannot become links, because a link follows them
    this.room = EXPANSION;
    this.ticks = null;
    this.wordEnd = 0;
  }

  pieces() {
    while (this.at < this.text.length) this.step();
    this.runs.pair(null);
    return this.out;
  }

  step() {
    switch (this.text[this.at]) {
      case "\n":
        return this.newline();
      case "\\":
        return this.backslash();
      case "`":
        return this.code();
      case "*":
      case "_":
      case "~":
        return this.run();
      case "[":
        return this.bracket("[");
      case "!":
        return this.text[this.at + 1] === "[" ? this.bracket("![") : this.say("!");
      case "]":
        return this.close();
      case "<":
        return this.pointed();
      case "&":
        return this.entity();
      default:
        return this.plain();
    }
  }

  say(text, length = text.length) {
    this.out.push({ kind: "text", text });
    this.at += length;
  }

  plain() {
    PLAIN.lastIndex = this.at;
    PLAIN.exec(this.text);
    const end = PLAIN.lastIndex;
    const found = this.address(end);
    if (found === null) {
      this.say(this.text.slice(this.at, end));
      return;
    }
    if (found.start > this.at) this.say(this.text.slice(this.at, found.start));
    const shown = this.text.slice(found.start, found.end);
    this.out.push({ kind: "open", type: "link", address: found.url.href, title: "" });
    this.say(shown);
    this.out.push({ kind: "close" });
  }

  /** Finds a plain address that begins before `end`. A word without one is examined only once. */
  address(end) {
    if (this.brackets.length || this.at < this.wordEnd) return null;
    const found = plainAddress(this.text, this.at, end);
    if (found?.url) return found;
    if (found) this.wordEnd = found.end;
    return null;
  }

  newline() {
    const last = this.out[this.out.length - 1];
    let isHard = false;
    if (last?.kind === "text") {
      isHard = last.text.endsWith("  ");
      last.text = last.text.slice(0, last.text.length - spacesAt(last.text));
    }
    this.out.push({ kind: "leaf", type: isHard ? "break" : "soft" });
    this.at += 1;
    while (this.text[this.at] === " " || this.text[this.at] === "\t") this.at += 1;
  }

  backslash() {
    const next = this.text[this.at + 1];
    if (next === "\n") {
      this.out.push({ kind: "leaf", type: "break" });
      this.at += 2;
      while (this.text[this.at] === " ") this.at += 1;
    } else if (isPunctuation(next)) {
      this.say(next, 2);
    } else {
      this.say("\\");
    }
  }

  /**
   * Parses code between two runs of the same number of backticks. For each length the search
   * position is remembered.
   */
  code() {
    this.ticks ??= tickRuns(this.text);
    const start = this.at;
    let end = start;
    while (this.text[end] === "`") end += 1;
    const runs = this.ticks.get(end - start) ?? { places: [], next: 0 };
    while (runs.next < runs.places.length && runs.places[runs.next] < end) runs.next += 1;
    if (runs.next >= runs.places.length) {
      this.say(this.text.slice(start, end));
      return;
    }
    const close = runs.places[runs.next];
    const inner = this.text.slice(end, close).replace(/\n/g, " ");
    const isPadded = inner.startsWith(" ") && inner.endsWith(" ") && /[^ ]/.test(inner);
    this.out.push({ kind: "leaf", type: "code", text: isPadded ? inner.slice(1, -1) : inner });
    this.at = close + (end - start);
  }

  run() {
    const char = this.text[this.at];
    let end = this.at;
    while (this.text[end] === char) end += 1;
    const run = runAt(this.text, this.at, end);
    this.out.push(run);
    if (run.canOpen || run.canClose) this.runs.push(run);
    this.at = end;
  }

  bracket(mark) {
    const isImage = mark === "![";
    const piece = { kind: "text", text: mark };
    if (this.brackets.length) this.brackets[this.brackets.length - 1].isOuter = true;
    const from = this.at + mark.length;
    this.brackets.push({ piece, isImage, from, run: this.runs.last, isOuter: false });
    this.out.push(piece);
    this.at += mark.length;
  }

  close() {
    const bracket = this.brackets.pop();
    if (bracket === undefined) {
      this.say("]");
      return;
    }
    const isDead = !bracket.isImage && this.brackets.length < this.plainBelow;
    const target = isDead ? null : this.inlineTarget() ?? this.reference(bracket);
    this.plainBelow = Math.min(this.plainBelow, this.brackets.length);
    if (target === null) {
      this.say("]");
      return;
    }
    const type = bracket.isImage ? "image" : "link";
    const { address, title: about } = target;
    Object.assign(bracket.piece, { kind: "open", type, address, title: about });
    this.runs.pair(bracket.run);
    this.out.push({ kind: "close" });
    this.at = target.end;
    // Links do not nest, so brackets before it stay text.
    if (!bracket.isImage) this.plainBelow = this.brackets.length;
  }

  /** Parses address and title in round brackets after the square one. */
  inlineTarget() {
    const text = this.text;
    if (text[this.at + 1] !== "(") return null;
    const found = destination(text, space(text, this.at + 2));
    if (found === null) return null;
    let at = space(text, found.end);
    const titled = at > found.end ? title(text, at) : null;
    if (titled !== null) at = space(text, titled.end);
    if (text[at] !== ")") return null;
    return { address: found.value, title: titled?.value ?? "", end: at + 1 };
  }

  reference(bracket) {
    const text = this.text;
    let end = labelEnd(text, this.at + 1);
    let label = end === -1 ? "" : text.slice(this.at + 2, end - 1);
    if (!label) {
      if (bracket.isOuter || this.at - bracket.from > 999) return null;
      label = text.slice(bracket.from, this.at);
    }
    if (end === -1) end = this.at + 1;
    const found = this.definitions.get(labelled(label));
    if (found === undefined) return null;
    this.room -= found.address.length + found.title.length;
    if (this.room < 0) return null;
    return { address: found.address, title: found.title, end };
  }

  pointed() {
    for (const [pattern, scheme] of [[POINTED, ""], [MAIL, "mailto:"]]) {
      pattern.lastIndex = this.at;
      const found = pattern.exec(this.text);
      if (found === null) continue;
      this.out.push({ kind: "open", type: "link", address: scheme + found[1], title: "" });
      this.say(found[1], found[0].length);
      this.out.push({ kind: "close" });
      return;
    }
    this.say("<");
  }

  entity() {
    ENTITY.lastIndex = this.at;
    const found = ENTITY.exec(this.text);
    const text = found === null ? null : referred(found);
    if (text === null) this.say("&");
    else this.say(text, found[0].length);
  }
}

function spacesAt(text) {
  let end = text.length;
  while (end > 0 && (text[end - 1] === " " || text[end - 1] === "\t")) end -= 1;
  return text.length - end;
}

function space(text, at) {
  while (text[at] === " " || text[at] === "\t" || text[at] === "\n") at += 1;
  return at;
}

function tickRuns(text) {
  const runs = new Map();
  for (const found of text.matchAll(/`+/g)) {
    const length = found[0].length;
    if (!runs.has(length)) runs.set(length, { places: [], next: 0 });
    runs.get(length).places.push(found.index);
  }
  return runs;
}
