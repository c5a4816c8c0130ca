// Polls a session's gateway for text while it is being written, as long as the session is open. An
// answer comes as soon as there is more, and the next request follows at once.

import { Growing } from "./growing.js";

const FIRST_WAIT = 500;
const LONGEST_WAIT = 10_000;
const PATIENCE = 30_000;
// How long finished text waits for its row while later text grows.
const LINGER = 1000;

export class Live {
  #call;
  #onChange;
  #growing = new Growing();
  #stop = null;
  #timer = 0;
  #wake = () => {};

  /** `call` asks the gateway; `onChange` is called with each piece. */
  constructor(call, onChange) {
    this.#call = call;
    this.#onChange = onChange;
  }

  /** `{text, thinking, speaker}`, or null. */
  get shown() {
    return this.#growing.shown;
  }

  start() {
    if (this.#stop) return;
    this.#stop = new AbortController();
    this.#watch(this.#stop.signal);
  }

  stop() {
    this.#stop?.abort();
    this.#stop = null;
    clearTimeout(this.#timer);
    this.#growing.clear();
  }

  /** The person seems to be active: polls at once if it was waiting. */
  hurry() {
    this.#wake();
  }

  /** Entries have arrived as rows. The caller dispatches the change, once for both. */
  settle(entries) {
    for (const entry of entries) {
      if (entry.role === "agent") this.#growing.settle(entry);
    }
  }

  async #watch(signal) {
    let wait = FIRST_WAIT;
    while (!signal.aborted) {
      try {
        const options = { signal, patience: PATIENCE };
        this.#take(await this.#call("watch", this.#growing.wanted, options));
        wait = FIRST_WAIT;
      } catch {
        await this.#pause(wait, signal);
        wait = Math.min(LONGEST_WAIT, 2 * wait);
      }
    }
  }

  #pause(ms, signal) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
      signal.addEventListener("abort", this.#wake, { once: true });
    });
  }

  #take(told) {
    if (!isTold(told)) throw new Error("This is no answer to a watch.");
    this.#growing.hear(told);
    clearTimeout(this.#timer);
    if (this.#growing.lingers) {
      this.#timer = setTimeout(() => {
        this.#growing.proceed();
        this.#onChange();
      }, LINGER);
    }
    this.#onChange();
  }
}

function isTold(told) {
  return told !== null && typeof told === "object" && typeof told.text === "string"
    && [told.segment, told.offset, told.next].every(Number.isSafeInteger);
}
