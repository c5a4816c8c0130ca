// Brings the rest of what was said onto this device, a page at a time and only when the browser has
// nothing better to do, so that it can be searched.

// Messages of a session that are fetched without anybody asking for them.
const MOST = 50_000;
const PAUSE = 250;

export class Filler {
  #sessions;
  #isOnline;
  #isWorking = false;

  /** Both are functions: what there is changes all the time. */
  constructor(sessions, isOnline) {
    this.#sessions = sessions;
    this.#isOnline = isOnline;
  }

  /** Begins, unless it is at it. Ends when there is nothing to do, or nobody to ask. */
  async start() {
    if (this.#isWorking) return;
    this.#isWorking = true;
    const given = new Set(); // those that could not be filled this time
    try {
      for (let next = this.#next(given); next; next = this.#next(given)) {
        await next.fill().catch(() => given.add(next));
        // A first page is what the list and the reader wait for; the rest can.
        if (!this.#next(given)?.isUnread) await whenIdle();
      }
    } finally {
      this.#isWorking = false;
    }
  }

  #next(given) {
    if (!this.#isOnline()) return null;
    const open = this.#sessions().filter((one) => !given.has(one) && !one.isWhole);
    return open.find((one) => one.isUnread) ?? open.find((one) => one.seq <= MOST) ?? null;
  }
}

export function whenIdle() {
  return new Promise((resolve) => {
    const idle = globalThis.requestIdleCallback ?? ((then) => setTimeout(then, PAUSE));
    setTimeout(() => idle(resolve, { timeout: 20 * PAUSE }), PAUSE);
  });
}
