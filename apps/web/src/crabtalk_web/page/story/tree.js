// The rows as a tree: each in its place among its neighbours, and inside the row of the call that
// it belongs to. A change to one is a change to all around it.

import { compare, insert, remove } from "./order.js";

// Deeper rows are moved up, because each level needs space.
const DEEPEST = 24;

export class Tree {
  rows = [];
  #places = new Map();
  #hosts = new Map();

  placeOf(row) {
    return this.#places.get(row);
  }

  /** Inserts a row, inside of `host` if there is one. */
  put(row, place, host = null) {
    this.#places.set(row, place);
    const around = this.#fitting(row, host);
    if (around) this.#hosts.set(row, around);
    insert(around ? around.children : this.rows, row, (one) => this.#places.get(one));
    if (around) this.touch(around);
  }

  take(row) {
    const host = this.#hosts.get(row);
    remove(host ? host.children : this.rows, row);
    this.#hosts.delete(row);
    if (host) this.touch(host);
  }

  /** Moves a row into `host`, from anywhere. */
  hang(row, host) {
    this.take(row);
    this.put(row, this.#places.get(row), host);
  }

  /** Moves a row to its new place within its parent. */
  move(row, place) {
    if (compare(this.#places.get(row), place) === 0) return;
    const host = this.#hosts.get(row) ?? null;
    this.take(row);
    this.put(row, place, host);
  }

  touch(row) {
    for (const one of this.#around(row)) one.revision += 1;
  }

  /** Whether a row is one of `rows`, or inside one of them. */
  isInside(row, rows) {
    return [...this.#around(row)].some((one) => rows.has(one));
  }

  /** Returns the row and all its ancestors. */
  *#around(row) {
    for (let at = row; at; at = this.#hosts.get(at)) yield at;
  }

  #fitting(row, host) {
    if (!host) return null;
    const around = [...this.#around(host)];
    const tooDeep = around.length + heightOf(row) - DEEPEST;
    return tooDeep > 0 ? (around[tooDeep] ?? null) : host;
  }
}

const heightOf = ({ children = [] }) => 1 + Math.max(0, ...children.map(heightOf));
