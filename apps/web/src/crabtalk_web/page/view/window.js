// The window over a long conversation: only rows near what is looked at are in the document, empty
// blocks stand for the rest. It follows the end while the reader is there, and else stays where the
// reader is, whatever comes above or below: the place of rows that are not loaded is taken from the
// start, and what is drawn takes from it as much as it needs.

import { arrange, h } from "../draw/dom.js";
import { Entries } from "./entries.js";
import { Heights } from "./heights.js";

// In heights of the view: so much is drawn beyond what is seen, and so much is left standing.
const AHEAD = 1.2;
const BEHIND = 3;
// Rows that are drawn in one go; then time is looked at. Half a frame is for the browser.
const BATCH = 6;
const BUDGET_MS = 7;
// From here on the reader is at the end.
const END_PX = 60;
// Nobody scrolls any more.
const IDLE_MS = 160;
// Browsers that hold the view still when something above it grows do it better than a script can.
const HOLDS_STILL = CSS.supports("overflow-anchor", "auto");

/** Dispatches `change` when the reader moves, and when rows come that the reader does not see. */
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
  // The height of what is above the window, and how much of it is for rows that are not loaded.
  #above = 0;
  #reserve = 0;
  #isAllLoaded = true;
  // The reader went to the very top, over all that is not loaded: to wait for the beginning.
  #isAtTop = false;

  #last = 0;
  #width = 0;
  #frame = 0;
  #idle = 0;

  /**
   * @param {HTMLElement} scroller what scrolls
   * @param {HTMLElement} head what is seen where rows are still to come, and above the first one
   * @param draw as Entries takes it
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

  /** Brings a row into view. @returns {HTMLElement | null} its element, if there is such a row */
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

  /** None of the rows was here before. */
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

  /** Puts the rows of the window in place. */
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

  /** Blocks of the right height around the window. */
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

  /** Draws more where the view comes near to what is not drawn, and takes away what is far off. */
  #fill(budget = BUDGET_MS) {
    const view = this.#scroller.clientHeight;
    if (!this.#rows.length || !view) return;
    const port = this.#scroller.getBoundingClientRect();
    const box = this.#holder.getBoundingClientRect();
    let above = port.top - box.top;
    let below = box.bottom - port.bottom;
    // Above the first row and below the last there is nothing to draw.
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
      // What was the first row had its day above it, and may have lost it now.
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

  /** The view is where nothing is drawn: draws there, and not all that lies between. */
  #seatAtView() {
    const before = this.#scroller.scrollTop;
    this.#seat(this.#heights.at(this.#rows, -this.#offset(this.#top)));
    this.#scroller.scrollTop = before;
    this.#fill(Infinity);
    this.#last = this.#scroller.scrollTop;
  }

  // ── Where the reader is ──────────────────────────────────────────────────────────────────────

  /**
   * Draws above the view without moving it: what is drawn taller or shorter than it was thought to
   * be is taken from the reserve. Only where that is used up does the whole have to move.
   * @param {() => number | void} draw gives how much of the space above the window it has filled
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

  /** Whether the view stays by itself. At the very top no browser sees to that. */
  get #isHeld() {
    return this.isFollowing || this.#isAtTop || (HOLDS_STILL && this.#scroller.scrollTop > 0);
  }

  #settleSoon() {
    clearTimeout(this.#idle);
    this.#idle = setTimeout(() => this.#settle(), IDLE_MS);
  }

  /** Once everything is loaded, what is left of the reserve goes; not under a moving hand. */
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
    // Only going up leaves the end: what grows below moves the end away from a reader who stayed.
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

/** Rows keep their order and mostly their place: looks there first, then all around. */
function indexOf(rows, id, guess) {
  if (rows[guess]?.id === id) return guess;
  return rows.findIndex((row) => row.id === id);
}
