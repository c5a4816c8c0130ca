// Fetches older messages in the background, a page at a time and only when the browser is idle, so
// that they can be searched.

// Limit of messages that are fetched in the background for one session.
const MOST = 50_000;
const PAUSE = 250;

export class Filler {
  #sessions;
  #isOnline;
  #isWorking = false;

  /** Both arguments are functions, because their results change all the time. */
  constructor(sessions, isOnline) {
    this.#sessions = sessions;
    this.#isOnline = isOnline;
  }

  /** Starts unless it is running. Ends when there is nothing to do, or no connection. */
  async start() {
    if (this.#isWorking) return;
    this.#isWorking = true;
    const given = new Set(); // sessions that could not be filled this time
    try {
      for (let next = this.#next(given); next; next = this.#next(given)) {
        await next.fill().catch(() => given.add(next));
        // The list and the reader wait for a first page; other pages can wait.
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
