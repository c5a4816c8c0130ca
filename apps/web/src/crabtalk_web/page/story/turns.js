// Turns: which one is open, and which of its calls are running. A turn that is followed by another
// is over, even without an end event.

import { compare } from "./order.js";

const INTERRUPTED = "interrupted";

export class Turns {
  #turns = new Map();
  #latest = null;
  #running = new Map(); // rows of running calls, with their turns

  /** Returns the turn of an entry at `place`, created if it is new. */
  see(id, place) {
    let turn = this.#turns.get(id);
    if (!turn) {
      turn = { id, last: place, isOver: false, calls: new Map(), ends: new Map(), guest: null };
      this.#turns.set(id, turn);
    }
    if (compare(turn.last, place) < 0) turn.last = place;
    if (this.#latest === null || compare(this.#latest.last, turn.last) <= 0) this.#latest = turn;
    return turn;
  }

  /** Returns the open turn, or null. */
  get open() {
    return this.#latest === null || this.#latest.isOver ? null : this.#latest;
  }

  /** A call starts; its end may have been loaded before. */
  begin(turn, row) {
    turn.calls.set(row.call, row);
    const end = turn.ends.get(row.call);
    if (end) finish(row, end);
    else this.#running.set(row, turn);
  }

  /** Returns the row of the call that ended, if known. */
  end(turn, ev) {
    turn.ends.set(ev.call, ev);
    const row = turn.calls.get(ev.call);
    if (!row) return null;
    this.#running.delete(row);
    finish(row, ev);
    return row;
  }

  /** Marks the rows of calls that will never return. */
  cut() {
    const rows = [];
    for (const [row, turn] of this.#running) {
      if (turn !== this.open) rows.push(row);
    }
    for (const row of rows) {
      row.state = "cut";
      this.#running.delete(row);
    }
    return rows;
  }
}

function finish(row, { result, isError, durationMs }) {
  const isCut = isError && result === INTERRUPTED;
  row.state = isCut ? "cut" : isError ? "failed" : "done";
  row.result = result;
  row.durationMs = durationMs;
}
