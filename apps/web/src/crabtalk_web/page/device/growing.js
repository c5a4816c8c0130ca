// The text that is being written, from what a gateway answers and from the rows that have come.
// Each piece becomes one envelope; its words are shown until that is a row, and not for a moment
// longer, so that nothing is on the screen twice, or not at all.

import { hueOf } from "../story/agents.js";

// Texts and turns that are remembered; more than one answer can be late for.
const REMEMBERED = 200;

export class Growing {
  #pieces = []; // the one that grows, after those whose rows have not come
  #became = new Map(); // the envelopes of pieces that are over
  #rows = new Set(); // ids of texts that are rows
  #turns = new Set(); // those that are over
  #at = { segment: 0, next: 0 };

  /** From where on more is wanted. */
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

  /** Whether words are shown that are over, while others grow behind them. */
  get lingers() {
    return this.#pieces.length > 1;
  }

  /** An answer of the gateway's. */
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
      // What was taken for its row was not: it goes on otherwise.
      if (piece.isRow && !piece.row.startsWith(piece.text.trim())) piece.isRow = false;
    }
    this.#tidy();
  }

  /** An agent's text is a row now. */
  settle({ id, subagent, turn, ev }) {
    if (ev.t === "turn-end") {
      remember(this.#turns, turn);
      this.#pieces = this.#pieces.filter((piece) => piece.turn !== turn);
    }
    if (ev.t !== "text") return;
    remember(this.#rows, id);
    // A row can be quicker than the answer that says which piece it was.
    const piece = this.#pieces.find((one) => !one.isRow && one.turn === turn
      && one.thinking === ev.thinking && one.subagent === subagent
      && ev.text.startsWith(one.text.trim()));
    if (piece) Object.assign(piece, { isRow: true, row: ev.text });
    this.#tidy();
  }

  /** Does not wait any longer for the row of words that are over. */
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
