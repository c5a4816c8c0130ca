// The elements of rows: created once, and cached for a while after they leave the document, with
// their open parts.

import { h } from "../draw/dom.js";

const KEPT = 400;

export class Entries {
  #kept = new Map();
  #draw;
  #observer;

  /**
   * @param {{render: (row) => Element, update: (element, row) => void, day: (row, before) =>
   * string}} draw
   * @param {ResizeObserver} observer watches all of them
   */
  constructor(draw, observer) {
    this.#draw = draw;
    this.#observer = observer;
  }

  /** Returns the row's current element, with the day above it if a new day begins. */
  of(row, before) {
    const kept = this.#kept.get(row.id) ?? this.#made(row);
    if (kept.revision !== row.revision || kept.row !== row) {
      this.#draw.update(kept.element, row);
      Object.assign(kept, { row, revision: row.revision });
    }
    const day = this.#draw.day(row, before);
    if (kept.day.textContent !== day) kept.day.textContent = day;
    kept.day.hidden = !day;
    return kept.entry;
  }

  find(id) {
    return this.#kept.get(id)?.entry;
  }

  /** The row whose element this is. */
  rowOf(element) {
    const kept = this.#kept.get(element.dataset?.row);
    return kept?.entry === element ? kept.row : null;
  }

  height(row) {
    return this.#kept.get(row.id).entry.getBoundingClientRect().height;
  }

  /** It contains the focus, which removing it would lose. */
  isInUse(row) {
    return Boolean(this.find(row.id)?.contains(document.activeElement));
  }

  /** Drops the elements that have been out of the document for longest. */
  prune() {
    for (const [id, { entry }] of this.#kept) {
      if (this.#kept.size <= KEPT) return;
      if (entry.isConnected) continue;
      this.#observer.unobserve(entry);
      this.#kept.delete(id);
    }
  }

  #made(row) {
    const element = this.#draw.render(row);
    const day = h("h2", { class: "day" });
    const dataset = { kind: row.kind, row: row.id };
    const entry = h("div", { class: "entry", dataset }, day, element);
    const kept = { entry, element, day, row, revision: row.revision };
    this.#kept.set(row.id, kept);
    this.#observer.observe(entry);
    return kept;
  }
}
