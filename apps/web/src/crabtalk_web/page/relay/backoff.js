// When to try again: soon at first, and later each time that it fails.

const FIRST = 500;
const LONGEST = 30_000;

export class Backoff {
  #wait = FIRST;
  #timer = 0;

  /** Has `again` called after a while, unless something else is planned before. */
  plan(again) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(again, this.#wait);
    this.#wait = Math.min(LONGEST, 2 * this.#wait);
  }

  /** It went well: nothing is planned, and the next time is soon. */
  reset() {
    clearTimeout(this.#timer);
    this.#wait = FIRST;
  }
}
