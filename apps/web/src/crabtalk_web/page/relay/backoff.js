// Retry backoff: soon at first, and later after each failure.

const FIRST = 500;
const LONGEST = 30_000;

export class Backoff {
  #wait = FIRST;
  #timer = 0;

  /** Calls `again` after the delay, unless something else is planned before. */
  plan(again) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(again, this.#wait);
    this.#wait = Math.min(LONGEST, 2 * this.#wait);
  }

  /** It succeeded: nothing is planned, and the next delay is short. */
  reset() {
    clearTimeout(this.#timer);
    this.#wait = FIRST;
  }
}
