// Virtual scrolling for a long conversation: only rows near the view are in the document, empty
// blocks stand for the others. It follows the end while the reader is there, and otherwise keeps
// the reader's position, whatever changes above or below: rows that are not loaded have a reserve
// of space from the start, and rows that are drawn take their space from it.

import { arrange, h } from "../draw/dom.js";
import { Entries } from "./entries.js";
import { Heights } from "./heights.js";

// In view heights: how far rows are drawn ahead of the view, and how far behind it they are kept.
const AHEAD = 1.2;
const BEHIND = 3;
// Rows drawn at a time before the clock is checked. Half a frame is left to the browser.
const BATCH = 6;
const BUDGET_MS = 7;
// Within this distance the reader is at the end.
const END_PX = 60;
// After this time scrolling counts as finished.
const IDLE_MS = 160;
// Scroll anchoring of the browser is better than what a script can do.
const HOLDS_STILL = CSS.supports("overflow-anchor", "auto");

/** Dispatches `change` when the reader moves, and when rows arrive outside the view. */
export class RowWindow extends EventTarget {
  isFollowing = true;
  newRows = 0;

  #scroller;
  #observer = new ResizeObserver((changes) => this.#resized(changes));
  #head = h("div", { class: "log-reserve" });
  #top = h("div", { class: "log-space" });
  #holder = h("div", { class: "log-rows" });
  #bottom = h("div", { class: "log-space" });

  // The window: rows from #start to before #end.
  #rows = [];
  #start = 0;
  #end = 0;
  #shown = { first: "", last: "", length: 0 };
  #entries;
  #heights = new Heights();
  // The height above the window, and how much of it is reserved for rows that are not loaded.
  #above = 0;
  #reserve = 0;
  #isAllLoaded = true;
  // The reader scrolled to the very top of the reserve, and waits for the beginning.
  #isAtTop = false;

  #last = 0;
  #width = 0;
  #frame = 0;
  #idle = 0;

  /**
   * @param {HTMLElement} scroller the scrolling element
   * @param {HTMLElement} head shown where rows are still loading, and above the first one
   * @param draw as for Entries
   */
  constructor(scroller, head, draw) {
    super();
    this.#scroller = scroller;
    this.#head.append(head);
    this.#entries = new Entries(draw, this.#observer);
    this.element = [this.#head, this.#top, this.#holder, this.#bottom];
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.#observer.observe(scroller);
  }

  /** Other content of the view may grow as well; the end is still followed. */
  watch(element) {
    this.#observer.observe(element);
  }

  close() {
    this.#observer.disconnect();
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#idle);
  }

  /** The distance from the view to the first row; negative inside the reserve. */
  get distanceFromTop() {
    return this.#scroller.scrollTop - this.#reserve;
  }

  /**
   * Sets the current rows. Elements of unchanged rows are not touched.
   * @param {number} missing the ratio of missing rows to loaded ones
   */
  show(rows, missing = 0) {
    const { first, last, length } = this.#shown;
    this.#rows = rows.slice(); // the story's own array changes between two frames
    this.#isAllLoaded = !missing;
    const start = first ? indexOf(rows, first, this.#start) : -1;
    const end = first ? indexOf(rows, last, this.#end - 1) + 1 : 0;
    if (start < 0 || end <= start) {
      this.#begin(missing);
      return;
    }
    const grown = rows.length - end - (length - this.#end);
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
    else this.newRows += Math.max(0, grown);
    if (grown) this.#told();
    if (this.#isAllLoaded && this.#reserve) this.#settleSoon();
  }

  toEnd() {
    this.isFollowing = true;
    if (this.#end < this.#rows.length) this.#seatAtEnd();
    else this.#stick();
    this.#told();
  }

  /** Scrolls a row into view. @returns {HTMLElement | null} its element, if there is such a row */
  reveal(id) {
    const index = this.#rows.findIndex((row) => row.id === id);
    if (index < 0) return null;
    this.isFollowing = false;
    this.#seat(index);
    const entry = this.#entries.find(id);
    const quarter = this.#scroller.clientHeight / 4;
    this.#move(this.#offset(entry) - quarter);
    this.#fill(Infinity);
    this.#move(this.#offset(entry) - quarter);
    this.#told();
    return entry;
  }

  // ── What is in the document ──────────────────────────────────────────────────────────────────

  /** None of the rows is known. */
  #begin(missing) {
    this.#seatAtEnd();
    this.#reserve = missing * this.#heights.between(this.#rows, 0, this.#rows.length);
    this.#space();
    if (this.isFollowing) this.#stick();
  }

  #seatAtEnd() {
    this.#seat(Math.max(0, this.#rows.length - BATCH * 2), BATCH * 2);
    if (this.isFollowing) this.#stick();
    this.#fill();
    if (this.isFollowing) this.#stick();
  }

  #seat(start, count = BATCH) {
    this.#start = start;
    this.#end = Math.min(this.#rows.length, start + count);
    this.#place();
    this.#space();
  }

  /** Puts the rows of the window into the document. */
  #place() {
    arrange(this.#holder, this.#drawn(this.#start, this.#end));
    this.#measure(this.#start, this.#end);
    this.#entries.prune();
  }

  #drawn(start, end) {
    const nodes = [];
    for (let at = start; at < end; at += 1) {
      nodes.push(this.#entries.of(this.#rows[at], this.#rows[at - 1]));
    }
    return nodes;
  }

  #measure(start, end) {
    let sum = 0;
    for (let at = start; at < end; at += 1) {
      const height = this.#entries.height(this.#rows[at]);
      this.#heights.learn(this.#rows[at], height);
      sum += height;
    }
    return sum;
  }

  /** Sets the heights of the empty blocks around the window. */
  #space() {
    const { length } = this.#rows;
    const [first, last] = [this.#rows[this.#start], this.#rows[this.#end - 1]];
    this.#shown = { first: first?.id ?? "", last: last?.id ?? "", length };
    const before = this.#heights.between(this.#rows, 0, this.#start);
    this.#above = this.#reserve + before;
    this.#head.style.setProperty("height", this.#reserve ? `${this.#reserve}px` : "auto");
    this.#top.style.setProperty("height", `${before}px`);
    const below = this.#heights.between(this.#rows, this.#end, length);
    this.#bottom.style.setProperty("height", `${below}px`);
  }

  /** Draws more near the edges of the view, and removes rows that are far away. */
  #fill(budget = BUDGET_MS) {
    const view = this.#scroller.clientHeight;
    if (!this.#rows.length || !view) return;
    const port = this.#scroller.getBoundingClientRect();
    const box = this.#holder.getBoundingClientRect();
    let above = port.top - box.top;
    let below = box.bottom - port.bottom;
    // There is nothing to draw above the first row and below the last.
    const isAbove = above < -view * BEHIND && this.#start > 0;
    const isBelow = below < -view * BEHIND && this.#end < this.#rows.length;
    if (isAbove || isBelow) {
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
    this.#trim(above, below, view * BEHIND);
    if (isLate) this.#later();
  }

  #extendUp() {
    const before = this.#start;
    this.#start = Math.max(0, before - BATCH);
    return this.#hold(() => {
      this.#holder.prepend(...this.#drawn(this.#start, before));
      // The former first row had its day above it, and may have lost it now.
      this.#drawn(before, Math.min(before + 1, this.#end));
      return this.#measure(this.#start, before);
    });
  }

  #extendDown() {
    const before = this.#end;
    this.#end = Math.min(this.#rows.length, before + BATCH);
    this.#holder.append(...this.#drawn(before, this.#end));
    const height = this.#measure(before, this.#end);
    this.#space();
    return height;
  }

  #trim(above, below, most) {
    const [start, end] = [this.#start, this.#end];
    const height = (at) => this.#heights.of(this.#rows[at]);
    const mayGo = (at) => this.#end - this.#start > 1 && !this.#entries.isInUse(this.#rows[at]);
    while (above - height(this.#start) > most && mayGo(this.#start)) {
      above -= height(this.#start);
      this.#start += 1;
    }
    while (below - height(this.#end - 1) > most && mayGo(this.#end - 1)) {
      below -= height(this.#end - 1);
      this.#end -= 1;
    }
    if (start === this.#start && end === this.#end) return;
    const gone = [...this.#rows.slice(start, this.#start), ...this.#rows.slice(this.#end, end)];
    for (const row of gone) this.#entries.find(row.id)?.remove();
    this.#space();
    this.#entries.prune();
  }

  /** The view is outside the drawn rows: draws there, without everything in between. */
  #seatAtView() {
    const before = this.#scroller.scrollTop;
    this.#seat(this.#heights.at(this.#rows, -this.#offset(this.#top)));
    this.#scroller.scrollTop = before;
    this.#fill(Infinity);
    this.#last = this.#scroller.scrollTop;
  }

  // ── Where the reader is ──────────────────────────────────────────────────────────────────────

  /**
   * Draws above the view without moving it: differences to the estimated height are taken from the
   * reserve. The content moves only if the reserve is used up.
   * @param {() => number | void} draw returns how much of the space above the window it has filled
   */
  #hold(draw) {
    const isHeld = this.#isHeld;
    const before = this.#above;
    const filled = draw() ?? 0;
    const guessed = this.#heights.between(this.#rows, 0, this.#start);
    if (this.#reserve) this.#reserve = Math.max(0, before - filled - guessed);
    this.#space();
    if (!isHeld) this.#move(this.#above + filled - before);
    return filled;
  }

  /** Whether the browser keeps the view still. At the very top no browser does. */
  get #isHeld() {
    return this.isFollowing || this.#isAtTop || (HOLDS_STILL && this.#scroller.scrollTop > 0);
  }

  #settleSoon() {
    clearTimeout(this.#idle);
    this.#idle = setTimeout(() => this.#settle(), IDLE_MS);
  }

  /** Removes the rest of the reserve once everything is loaded; not while the reader scrolls. */
  #settle() {
    if (!this.#isAllLoaded || !this.#reserve) return;
    const before = this.#above;
    const isHeld = this.#isHeld;
    this.#reserve = 0;
    this.#space();
    if (!isHeld) this.#move(this.#above - before);
  }

  #offset(element) {
    return element.getBoundingClientRect().top - this.#scroller.getBoundingClientRect().top;
  }

  #move(distance) {
    if (distance) this.#scroller.scrollTop += distance;
    this.#last = this.#scroller.scrollTop;
  }

  #stick() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#last = this.#scroller.scrollTop;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < END_PX;
    // Only scrolling up stops following: growth below moves the end away from a reader who stayed.
    if (isAtEnd && this.#end === this.#rows.length) this.isFollowing = true;
    else if (scrollTop < this.#last - 1) this.isFollowing = false;
    this.#isAtTop = scrollTop <= 0 && (this.#isAtTop || this.#reserve > 0);
    this.#last = scrollTop;
    this.#fill();
    this.#told();
    this.#settleSoon();
  }

  #resized(changes) {
    for (const { target } of changes) {
      if (target === this.#scroller) this.#widen();
      const row = target.isConnected && this.#entries.rowOf(target);
      if (row) this.#heights.learn(row, this.#entries.height(row));
    }
    if (this.isFollowing) this.#stick();
    else this.#later();
  }

  #widen() {
    if (this.#width && this.#width !== this.#scroller.clientWidth) this.#heights.forget();
    this.#width = this.#scroller.clientWidth;
  }

  #later() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#fill();
      if (this.isFollowing) this.#stick();
    });
  }

  #told() {
    if (this.isFollowing) this.newRows = 0;
    this.dispatchEvent(new Event("change"));
  }
}

/** Rows keep their order and mostly their index: looks there first, then nearby. */
function indexOf(rows, id, guess) {
  if (rows[guess]?.id === id) return guess;
  return rows.findIndex((row) => row.id === id);
}
