// Text that is being written: merges the gateway's answers with the rows that have arrived. Each
// piece becomes one envelope. Its text is shown until that envelope is a row, so that nothing is
// shown twice or disappears in between.

import { hueOf } from "../story/agents.js";

// Texts and turns that are remembered for answers that come late.
const REMEMBERED = 200;

export class Growing {
  #pieces = []; // the growing piece, after finished ones whose rows have not arrived
  #became = new Map(); // the envelope ids of finished pieces
  #rows = new Set(); // ids of texts that are rows
  #turns = new Set(); // turns that are over
  #at = { segment: 0, next: 0 };

  /** Returns the offset from which text is wanted. */
  get wanted() {
    return { segment: this.#at.segment, offset: this.#at.next };
  }

  /** `{text, thinking, speaker}`, or null. */
  get shown() {
    const piece = this.#pieces.find(({ isRow, text }) => !isRow && text.trim());
    if (!piece) return null;
    const { text, thinking, speaker } = piece;
    return { text: text.replace(/^\n+/, ""), thinking, speaker };
  }

  /** Whether finished text is still shown while a later piece grows. */
  get lingers() {
    return this.#pieces.length > 1;
  }

  /** Handles an answer of the gateway. */
  hear({ segment, offset, text, next, thinking, turn, speaker, subagent, became }) {
    for (const [number, id] of Object.entries(became ?? {})) this.#became.set(Number(number), id);
    this.#at = { segment, next };
    let piece = this.#pieces.find(({ number }) => number === segment);
    if (!piece && text && !this.#turns.has(turn)) {
      const guest = subagent && { id: subagent, name: speaker, kind: "guest", hue: hueOf(speaker) };
      piece = { number: segment, text: "", next: 0, thinking: thinking === true, turn, subagent };
      Object.assign(piece, { speaker: guest || null, isRow: false });
      this.#pieces.push(piece);
    }
    if (piece && offset === piece.next) {
      piece.text += text;
      piece.next = next;
      // The wrong row was matched: this piece continues differently.
      if (piece.isRow && !piece.row.startsWith(piece.text.trim())) piece.isRow = false;
    }
    this.#tidy();
  }

  /** An agent's text has arrived as a row. */
  settle({ id, subagent, turn, ev }) {
    if (ev.t === "turn-end") {
      remember(this.#turns, turn);
      this.#pieces = this.#pieces.filter((piece) => piece.turn !== turn);
    }
    if (ev.t !== "text") return;
    remember(this.#rows, id);
    // A row can arrive before the answer that names its piece.
    const piece = this.#pieces.find((one) => !one.isRow && one.turn === turn
      && one.thinking === ev.thinking && one.subagent === subagent
      && ev.text.startsWith(one.text.trim()));
    if (piece) Object.assign(piece, { isRow: true, row: ev.text });
    this.#tidy();
  }

  /** Stops waiting for the rows of finished text. */
  proceed() {
    this.#pieces.splice(0, this.#pieces.length - 1);
  }

  clear() {
    this.#pieces = [];
    this.#at = { segment: 0, next: 0 };
  }

  #tidy() {
    this.#pieces = this.#pieces.filter(({ number, isRow }) => {
      const became = this.#became.get(number);
      const isOver = number < this.#at.segment;
      if (became === undefined) return !(isRow && isOver);
      return became !== "" && !this.#rows.has(became);
    });
    for (const number of [...this.#became.keys()].slice(0, -REMEMBERED)) {
      this.#became.delete(number);
    }
  }
}

function remember(set, value) {
  set.add(value);
  if (set.size > REMEMBERED) set.delete(set.values().next().value);
}
