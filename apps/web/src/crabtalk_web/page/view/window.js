// The window over a long conversation: only rows near what is looked at are in the document, two
// empty blocks stand for the rest. Follows the end while the reader is there, and stays where the
// reader is otherwise, whatever comes above or below: the place for rows that are not loaded is taken
// from the start, and what is drawn takes from it as much as it needs.

import { arrange, h } from "../draw/dom.js";
import { Heights } from "./heights.js";

// In heights of the view: so much is drawn beyond what is seen, and so much is left standing.
const AHEAD = 1.2;
const BEHIND = 3;
// Rows that are drawn in one go; then time is looked at. Half a frame is for the browser.
const BATCH = 6;
const BUDGET_MS = 7;
// Elements that are kept though they are not in the document, with what was opened in them.
const KEPT = 400;
// From here on the reader is at the end.
const END_PX = 60;
// Nobody scrolls any more.
const IDLE_MS = 160;
// Browsers that hold the view still when something above it grows do it better than a script can.
const HOLDS_STILL = CSS.supports("overflow-anchor", "auto");

export class RowWindow extends EventTarget {
  #rows = [];
  // Of the rows as they were shown last.
  #shown = { first: "", last: "", length: 0 };
  #start = 0;
  #end = 0;
  #entries = new Map();
  #heights = new Heights();
  #draw;
  #head = h("div", { class: "log-reserve" });
  #top = h("div", { class: "log-space" });
  #holder = h("div", { class: "log-rows" });
  #bottom = h("div", { class: "log-space" });
  #scroller;
  #observer;
  #last = 0;
  #above = 0;
  #reserve = 0;
  #isAllLoaded = true;
  #idle = 0;
  #width = 0;
  #frame = 0;

  isFollowing = true;
  newRows = 0;

  /**
   * @param {HTMLElement} scroller what scrolls
   * @param {HTMLElement} head what is seen where rows are still to come, and above the first one
   * @param {{render: (row) => Element, update: (element, row) => void, day: (row, before) => string}} draw
   */
  constructor(scroller, head, draw) {
    super();
    this.#head.append(head);
    this.#scroller = scroller;
    this.#draw = draw;
    this.element = [this.#head, this.#top, this.#holder, this.#bottom];
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.#observer = new ResizeObserver((changes) => this.#resized(changes));
    this.#observer.observe(scroller);
  }

  /** Also whatever else stands in the view may grow; then the end is followed all the same. */
  watch(element) {
    this.#observer.observe(element);
  }

  close() {
    this.#observer.disconnect();
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#idle);
  }

  /** How far the view is from the first row; less than nothing where rows are still to come. */
  get distanceFromTop() {
    return this.#scroller.scrollTop - this.#reserve;
  }

  /**
   * The rows as they are now. Elements of rows that did not change are not touched.
   * @param {number} missing how many times as much there is before the first of them
   */
  show(rows, missing = 0) {
    const { first, last, length } = this.#shown;
    this.#rows = rows.slice(); // the story's own array changes between two frames
    this.#isAllLoaded = !missing;
    const start = first ? indexOf(rows, first, this.#start) : -1;
    const end = first ? indexOf(rows, last, this.#end - 1) + 1 : 0;
    if (start < 0 || end <= start) {
      this.#seatAtEnd();
      this.#reserve = missing * this.#heights.between(rows, 0, rows.length);
      this.#space();
      if (this.isFollowing) this.#stick();
      return;
    }
    const grown = rows.length - end - (length - this.#end);
    if (!this.isFollowing) this.newRows += Math.max(0, grown);
    const wasAtLast = this.#end === length;
    this.#start = start;
    this.#end = wasAtLast && grown < BATCH * 4 ? rows.length : end;
    if (this.isFollowing && this.#end < rows.length) {
      this.#seatAtEnd();
      return;
    }
    this.#hold(() => this.#place());
    this.#fill();
    if (this.isFollowing) this.#stick();
    if (grown) this.#told();
  }

  toEnd() {
    this.isFollowing = true;
    if (this.#end < this.#rows.length) this.#seatAtEnd();
    else this.#stick();
    this.#told();
  }

  /** Brings a row into view. @returns {HTMLElement|null} its element; null if there is no such row */
  reveal(id) {
    const index = this.#rows.findIndex((row) => row.id === id);
    if (index < 0) return null;
    this.isFollowing = false;
    this.#start = index;
    this.#end = Math.min(this.#rows.length, index + BATCH);
    this.#place();
    const entry = this.#entries.get(id).entry;
    const center = () => {
      const room = this.#scroller.clientHeight;
      const box = entry.getBoundingClientRect();
      this.#scroller.scrollTop += box.top - this.#scroller.getBoundingClientRect().top - room / 4;
      this.#last = this.#scroller.scrollTop;
    };
    center();
    this.#fill(Infinity);
    center();
    this.#told();
    return entry;
  }

  // ── What is in the document ──────────────────────────────────────────────────────────────────

  #seatAtEnd() {
    this.#end = this.#rows.length;
    this.#start = Math.max(0, this.#end - BATCH * 2);
    this.#place();
    if (this.isFollowing) this.#stick();
    this.#fill();
    if (this.isFollowing) this.#stick();
  }

  /** Puts the rows of the window in place, and blocks of the right height around them. */
  #place() {
    const nodes = [];
    for (let index = this.#start; index < this.#end; index += 1) nodes.push(this.#entry(index));
    arrange(this.#holder, nodes);
    this.#measure(this.#start, this.#end);
    this.#space();
    this.#prune();
  }

  #space() {
    const { length } = this.#rows;
    const [first, last] = [this.#rows[this.#start], this.#rows[this.#end - 1]];
    this.#shown = { first: first?.id ?? "", last: last?.id ?? "", length };
    this.#above = this.#reserve + this.#heights.between(this.#rows, 0, this.#start);
    this.#head.style.setProperty("height", this.#reserve ? `${this.#reserve}px` : "auto");
    this.#top.style.setProperty("height", `${this.#above - this.#reserve}px`);
    const below = this.#heights.between(this.#rows, this.#end, this.#rows.length);
    this.#bottom.style.setProperty("height", `${below}px`);
  }

  #entry(index) {
    const row = this.#rows[index];
    let kept = this.#entries.get(row.id);
    if (!kept) {
      const element = this.#draw.render(row);
      const day = h("h2", { class: "day" });
      const entry = h("div", { class: "entry", dataset: { kind: row.kind, row: row.id } }, day, element);
      kept = { entry, element, day, row, revision: row.revision };
      this.#entries.set(row.id, kept);
      this.#observer.observe(entry);
    } else if (kept.revision !== row.revision || kept.row !== row) {
      this.#draw.update(kept.element, row);
      kept.revision = row.revision;
      kept.row = row;
    }
    const day = this.#draw.day(row, this.#rows[index - 1]);
    if (kept.day.textContent !== day) kept.day.textContent = day;
    kept.day.hidden = !day;
    return kept.entry;
  }

  #measure(start, end) {
    let height = 0;
    for (let index = start; index < end; index += 1) {
      const row = this.#rows[index];
      const measured = this.#entries.get(row.id).entry.getBoundingClientRect().height;
      this.#heights.learn(row, measured);
      height += measured;
    }
    return height;
  }

  /** Draws more where the view comes near to what is not drawn, and takes away what is far off. */
  #fill(budget = BUDGET_MS) {
    if (!this.#rows.length) return;
    const view = this.#scroller.clientHeight;
    if (!view) return;
    const port = this.#scroller.getBoundingClientRect();
    const box = this.#holder.getBoundingClientRect();
    let above = port.top - box.top;
    let below = box.bottom - port.bottom;
    // Above the first row of all there is nothing to draw yet.
    const isElsewhere = (above < -view * BEHIND && this.#start > 0) || below < -view * BEHIND;
    if (isElsewhere) {
      this.#seatAtView();
      return;
    }
    const until = performance.now() + budget;
    let isLate = false;
    while (this.#start > 0 && above < view * AHEAD && !isLate) {
      above += this.#extendUp();
      isLate = above > 0 && performance.now() > until;
    }
    while (this.#end < this.#rows.length && below < view * AHEAD && !isLate) {
      below += this.#extendDown();
      isLate = below > 0 && performance.now() > until;
    }
    this.#trim(above, below, view);
    if (isLate) this.#frame ||= requestAnimationFrame(() => this.#goOn());
  }

  #goOn() {
    this.#frame = 0;
    this.#fill();
    if (this.isFollowing) this.#stick();
  }

  #extendUp() {
    const before = this.#start;
    this.#start = Math.max(0, before - BATCH);
    let height = 0;
    this.#hold(() => {
      const nodes = [];
      for (let index = this.#start; index < before; index += 1) nodes.push(this.#entry(index));
      this.#holder.prepend(...nodes);
      // What was the first row had its day above it, and may have lost it now.
      if (before < this.#end) this.#entry(before);
      height = this.#measure(this.#start, before);
      return height;
    });
    return height;
  }

  #extendDown() {
    const end = Math.min(this.#rows.length, this.#end + BATCH);
    const nodes = [];
    for (let index = this.#end; index < end; index += 1) nodes.push(this.#entry(index));
    this.#holder.append(...nodes);
    const height = this.#measure(this.#end, end);
    this.#end = end;
    this.#space();
    return height;
  }

  #trim(above, below, view) {
    const [start, end] = [this.#start, this.#end];
    const height = (index) => this.#heights.of(this.#rows[index]);
    const mayGo = (index) => this.#end - this.#start > 1 && !this.#isInUse(index);
    while (mayGo(this.#start) && above - height(this.#start) > view * BEHIND) {
      above -= height(this.#start);
      this.#start += 1;
    }
    while (mayGo(this.#end - 1) && below - height(this.#end - 1) > view * BEHIND) {
      below -= height(this.#end - 1);
      this.#end -= 1;
    }
    if (start === this.#start && end === this.#end) return;
    for (let index = start; index < this.#start; index += 1) this.#leave(index);
    for (let index = this.#end; index < end; index += 1) this.#leave(index);
    this.#space();
    this.#prune();
  }

  /** Somebody is in it: taking it away would lose the focus. */
  #isInUse(index) {
    return this.#entries.get(this.#rows[index].id)?.entry.contains(document.activeElement);
  }

  #leave(index) {
    this.#entries.get(this.#rows[index].id)?.entry.remove();
  }

  #prune() {
    if (this.#entries.size <= KEPT) return;
    for (const [id, { entry }] of this.#entries) {
      if (this.#entries.size <= KEPT) return;
      if (entry.isConnected) continue;
      this.#observer.unobserve(entry);
      this.#entries.delete(id);
    }
  }

  /** The view is where nothing is drawn: draws there, and not all that lies between. */
  #seatAtView() {
    const before = this.#scroller.scrollTop;
    const offset = this.#top.getBoundingClientRect().top - this.#scroller.getBoundingClientRect().top;
    const index = this.#heights.at(this.#rows, -offset);
    this.#start = index;
    this.#end = Math.min(this.#rows.length, index + BATCH);
    this.#place();
    this.#scroller.scrollTop = before;
    this.#fill(Infinity);
    this.#last = this.#scroller.scrollTop;
  }

  // ── Where the reader is ──────────────────────────────────────────────────────────────────────

  /**
   * Draws above the view without moving it: what is drawn taller or shorter than it was thought to
   * be is taken from the reserve. Only where that is used up does the whole have to move.
   * @param {() => number} draw gives how much of the space above the window it has filled
   */
  #hold(draw) {
    const isHeld = this.isFollowing || (HOLDS_STILL && this.#scroller.scrollTop > 0);
    const before = this.#above;
    const filled = draw() ?? 0;
    const guessed = this.#heights.between(this.#rows, 0, this.#start);
    if (this.#reserve) this.#reserve = Math.max(0, before - filled - guessed);
    this.#space();
    if (!isHeld) this.#move(this.#above + filled - before);
  }

  /** Once everything is loaded, what is left of the reserve goes; not under a moving hand. */
  #settle() {
    if (!this.#isAllLoaded || !this.#reserve) return;
    const before = this.#above;
    const isHeld = HOLDS_STILL && this.#scroller.scrollTop > 0;
    this.#reserve = 0;
    this.#space();
    if (!isHeld) this.#move(this.#above - before);
  }

  #move(distance) {
    if (!distance) return;
    this.#scroller.scrollTop += distance;
    this.#last = this.#scroller.scrollTop;
  }

  #stick() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#last = this.#scroller.scrollTop;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < END_PX;
    // Only going up leaves the end: what grows below moves the end away from a reader who stayed.
    if (isAtEnd && this.#end === this.#rows.length) this.isFollowing = true;
    else if (scrollTop < this.#last - 1) this.isFollowing = false;
    this.#last = scrollTop;
    this.#fill();
    this.#told();
    clearTimeout(this.#idle);
    this.#idle = setTimeout(() => this.#settle(), IDLE_MS);
  }

  #resized(changes) {
    for (const { target } of changes) {
      if (target === this.#scroller) {
        if (this.#width && this.#width !== target.clientWidth) this.#heights.forget();
        this.#width = target.clientWidth;
      }
      const kept = this.#entries.get(target.dataset?.row);
      if (kept?.entry === target && target.isConnected) {
        this.#heights.learn(kept.row, target.getBoundingClientRect().height);
      }
    }
    if (this.isFollowing) this.#stick();
    else this.#frame ||= requestAnimationFrame(() => this.#goOn());
  }

  #told() {
    if (this.isFollowing) this.newRows = 0;
    this.dispatchEvent(new Event("change"));
  }
}

/** Rows keep their order and mostly their place: looks there first, then all around. */
function indexOf(rows, id, guess) {
  if (rows[guess]?.id === id) return guess;
  return rows.findIndex((row) => row.id === id);
}
