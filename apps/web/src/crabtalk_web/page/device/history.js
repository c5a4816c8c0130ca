// The history of a session: messages from the relay and from disk into its story, page by page.
//
// The cursor is the number of the last message that was looked at, and moves over nothing else. A
// message that comes by the socket counts only when it is the next one; else what is missing is
// fetched. What was read is kept on disk behind the screen's back: after a crash it is read again.

import { expect } from "../relay/errors.js";
import { readMessage } from "../story/bodies.js";
import { Story } from "../story/story.js";
import { latestHole, spanOf, withSpan } from "./spans.js";
import { result } from "./store.js";

export const PAGE = 200;
const FORWARD = 500;
const BLOCK = 250;
// Whoever was away for longer sees the latest page first; what lies between is read when wanted.
const LARGEST_GAP = 2000;
const LAST = 2147483647;

export class History {
  state = "idle"; // "loading" | "failed"
  problem = "";
  story = new Story();

  #session;
  #store;
  #http;
  #spans = null;
  #cursor = -1; // not known yet
  #low = 0; // the first number in the story; 0 when nothing was read into it
  #line = Promise.resolve();
  #wanted = null; // an older page that is being read
  #heard = []; // by the socket, and not looked at yet

  /** `session` opens what is sealed, and is told of entries and of changes. */
  constructor(session, store, http) {
    this.#session = session;
    this.#store = store;
    this.#http = http;
  }

  /** What is on disk, where that was read already. */
  recall(spans) {
    this.#spans = spans;
    this.#cursor = spans.at(-1)?.[1] ?? -1;
  }

  get hasOlder() {
    return this.#low > 1;
  }

  get loaded() {
    return this.#low ? Math.max(0, this.#cursor - this.#low + 1) : 0;
  }

  get cursor() {
    return this.#cursor;
  }

  /** Whether everything is on this device. */
  get isWhole() {
    return this.#cursor >= 0 && latestHole(this.#spans) === null;
  }

  /** The newest page from disk into the story. Asks nobody. */
  open() {
    return this.#inLine(async () => {
      await this.#known();
      if (this.#low) return;
      const last = this.#spans.at(-1);
      if (last && last[1] >= this.#cursor) await this.#begin(last);
      else this.#cursor = -1; // what was read is not here: there was no room for it
    });
  }

  /** Forgets what was read into the story. */
  release() {
    this.story = new Story();
    this.#low = 0;
  }

  /** By the socket. All that has come while something else was done is looked at together. */
  hear(message) {
    this.#heard.push(message);
    if (this.#heard.length > 1) return this.#line;
    return this.#inLine(async () => {
      await this.#known();
      const fresh = this.#heard.splice(0).filter((one) => one.seq > this.#cursor);
      const next = fresh.sort((a, b) => a.seq - b.seq).filter(isNext(this.#cursor));
      if (next.length) await this.#take(next, this.#cursor + 1, next.at(-1).seq);
      const last = fresh.at(-1)?.seq ?? 0;
      if (last > this.#cursor) await this.#fetchNew(last);
    });
  }

  /** All that is new at the relay. `seq` is how far that goes, where it is known. */
  catchUp(seq = 0) {
    return this.#inLine(async () => {
      await this.#known();
      if (!seq || seq > this.#cursor || this.#cursor < 0) await this.#fetchNew(seq);
    });
  }

  /** One more page into the story. Raises AwayError, RefusedError. */
  loadOlder() {
    this.#wanted ??= this.#inLine(() => this.#older()).finally(() => (this.#wanted = null));
    return this.#wanted;
  }

  /** Until that message is in the story. */
  loadTo(seq) {
    return this.#inLine(async () => {
      while (this.#low > 1 && this.#low > seq) await this.#older();
    });
  }

  /** One page of what is missing on this device, onto the disk alone. */
  fill() {
    return this.#inLine(async () => {
      await this.#known();
      if (this.#cursor < 0) return this.#fetchNew(0);
      const hole = latestHole(this.#spans);
      if (!hole) return;
      const { isKept } = await this.#fetchBefore(hole[1] + 1, FORWARD);
      if (!isKept) throw new Error("The browser keeps no more.");
    });
  }

  /** What is on disk, in blocks of numbers, the latest first. For those who look for something. */
  async *blocks() {
    await this.#known();
    for (const [from, to] of [...this.#spans].reverse()) {
      for (let high = to; high >= from; ) {
        const low = Math.max(from, high - (high % BLOCK));
        yield { low, high };
        high = low - 1;
      }
    }
  }

  /** Entries from disk, by number. */
  async entries(low, high) {
    return this.#opened(await this.#kept(low, high));
  }

  // ── From the relay ──────────────────────────────────────────────────────────────────────────

  async #fetchNew(seq) {
    if (this.#cursor < 0 || seq - this.#cursor > LARGEST_GAP) return this.#jump();
    for (let hasMore = true; hasMore; ) {
      const before = this.#cursor;
      const page = await this.#page(`after_seq=${before}&limit=${FORWARD}`);
      const fresh = page.messages.filter((message) => message.seq > before);
      if (!fresh.length) return;
      await this.#take(fresh, before + 1, fresh.at(-1).seq);
      hasMore = page.hasMore;
    }
  }

  /** The latest page, and whatever the story had is read anew from there. */
  async #jump() {
    const wasShown = this.#low > 0;
    const { messages, low } = await this.#fetchBefore(LAST, PAGE);
    if (wasShown) this.release();
    const high = messages.at(-1)?.seq ?? 0;
    this.#cursor = high;
    const entries = await this.#opened(messages);
    this.#session.heard(entries, high);
    if (!wasShown && !this.#session.isOpen) return;
    this.#show(entries, low);
    await this.#session.begun();
  }

  async #older() {
    if (!this.hasOlder) return;
    this.#become("loading");
    try {
      const below = this.#low - 1;
      const span = spanOf(this.#spans, below);
      if (span) {
        const low = Math.max(span[0], below - PAGE + 1);
        this.#show(await this.#opened(await this.#kept(low, below)), low);
      } else {
        const { messages, low } = await this.#fetchBefore(this.#low, PAGE);
        this.#show(await this.#opened(messages), low);
      }
      this.#become("idle");
    } catch (error) {
      this.#become("failed", error.message);
      throw error;
    }
  }

  /** A page that ends before `seq`, kept; messages by number, and how far down it goes. */
  async #fetchBefore(seq, limit) {
    const page = await this.#page(`before_seq=${seq}&limit=${limit}`);
    const messages = page.messages.sort((a, b) => a.seq - b.seq);
    const low = page.hasMore && messages.length ? messages[0].seq : 1;
    const high = seq === LAST ? (messages.at(-1)?.seq ?? 0) : seq - 1;
    const isKept = await this.#keep(messages, low, high);
    return { messages, low, isKept };
  }

  async #page(query) {
    const page = await this.#http.get(`/v3/sessions/${this.#session.id}/messages?${query}`);
    const { messages, hasMore } = page;
    // What is taken for a page that is none would leave a hole that nobody looks for.
    expect(Array.isArray(messages) && messages.every(isMessage) && typeof hasMore === "boolean");
    return { messages, hasMore };
  }

  // ── Into the story, and onto the disk ───────────────────────────────────────────────────────

  async #take(messages, low, high) {
    const entries = await this.#opened(messages);
    this.#cursor = high;
    this.#session.heard(entries, high);
    if (this.#low) this.#show(entries, this.#low);
    const isKept = await this.#keep(messages, low, high);
    if (this.#low || !this.#session.isOpen) return;
    // It came while the session was being opened: with the page before it.
    if (isKept) await this.#begin(this.#spans.at(-1));
    else this.#show(entries, low);
  }

  /** The newest page of a span from disk. */
  async #begin([from, to]) {
    const low = Math.max(from, to - PAGE + 1);
    this.#show(await this.#opened(await this.#kept(low, to)), low);
  }

  #show(entries, low) {
    this.#low = low;
    this.story.add(entries);
    this.#session.shown(entries);
  }

  async #opened(messages) {
    const opened = await Promise.all(messages.map(async (message) =>
      readMessage(message, await this.#session.unseal(message.content?.c ?? message.c))));
    return opened.filter((entry) => entry !== null);
  }

  async #known() {
    if (this.#spans) return;
    const kept = await this.#store.get("spans", this.#session.id);
    if (!this.#spans) this.recall(kept?.spans ?? []);
  }

  async #kept(low, high) {
    const id = this.#session.id;
    return high < low ? [] : this.#store.range("messages", [id, low], [id, high]);
  }

  /** In one transaction, with another tab in mind that keeps messages of this session as well.
   * False where there is no room: it is shown all the same, and fetched again another time. */
  async #keep(messages, low, high) {
    const id = this.#session.id;
    let spans = this.#spans;
    try {
      await this.#store.change(["messages", "spans"], async (tables) => {
        const there = (await result(tables.spans.get(id)))?.spans ?? [];
        spans = high >= low || !there.length ? withSpan(there, low, high) : there;
        tables.spans.put({ id, spans });
        for (const { seq, localId, createdAt, content } of messages) {
          tables.messages.put({ session: id, seq, localId, createdAt, c: content?.c });
        }
      });
      this.#spans = spans;
      return true;
    } catch {
      return false;
    }
  }

  #become(state, problem = "") {
    Object.assign(this, { state, problem });
    this.#session.changed();
  }

  /** One thing after the other: pages that overlap would move the cursor over each other. */
  #inLine(work) {
    const done = this.#line.then(work);
    this.#line = done.catch(() => {});
    return done;
  }
}

/** True for those that follow a number without a hole, each once. */
const isNext = (cursor) => (message) => {
  if (message.seq !== cursor + 1) return false;
  cursor += 1;
  return true;
};
const isMessage = (one) => Number.isSafeInteger(one?.seq) && one.seq > 0;
