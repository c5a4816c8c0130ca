// Turns: which one is open, and which calls have not returned in it.
// A turn that is followed by another is over, even if nobody said so.

import { compare } from "./order.js";

const INTERRUPTED = "interrupted";

export class Turns {
  #turns = new Map();
  #latest = null;
  #running = new Map(); // rows of calls that have not returned, with their turns

  /** The turn of an entry, which has now been heard of at `place`. */
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

  /** The one that is open now, or null. */
  get open() {
    return this.#latest === null || this.#latest.isOver ? null : this.#latest;
  }

  /** A call begins; its end may have been read before. */
  begin(turn, row) {
    turn.calls.set(row.call, row);
    const end = turn.ends.get(row.call);
    if (end) finish(row, end);
    else this.#running.set(row, turn);
  }

  /** The row of the call that ended, where it is known. */
  end(turn, ev) {
    turn.ends.set(ev.call, ev);
    const row = turn.calls.get(ev.call);
    if (!row) return null;
    this.#running.delete(row);
    finish(row, ev);
    return row;
  }

  /** Rows of calls that will not return any more, now told so. */
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
