// The history of a session: loads messages from the relay and from disk into its story, page by
// page.
//
// The cursor is the number of the last processed message and never skips one. A message from the
// socket counts only if it is the next one; otherwise the missing ones are fetched. Messages are
// stored in the background; after a crash they are fetched again.

import { expect } from "../relay/errors.js";
import { readMessage } from "../story/bodies.js";
import { Story } from "../story/story.js";
import { latestHole, spanOf, withSpan } from "./spans.js";
import { result } from "./store.js";

export const PAGE = 200;
const FORWARD = 500;
const BLOCK = 250;
// After a longer absence only the latest page is loaded; the messages in between are loaded when
// they are needed.
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
  #cursor = -1; // -1: not known yet
  #low = 0; // the first number in the story; 0 if it is empty
  #line = Promise.resolve();
  #wanted = null; // an older page that is being loaded
  #heard = []; // from the socket, and not processed yet

  /** `session` opens sealed values, and is told about entries and changes. */
  constructor(session, store, http) {
    this.#session = session;
    this.#store = store;
    this.#http = http;
  }

  /** Loads the spans that are on disk. */
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

  /** Whether all messages are on this device. */
  get isWhole() {
    return this.#cursor >= 0 && latestHole(this.#spans) === null;
  }

  /** Loads the newest page from disk into the story, without the network. */
  open() {
    return this.#inLine(async () => {
      await this.#known();
      if (this.#low) return;
      const last = this.#spans.at(-1);
      if (last && last[1] >= this.#cursor) await this.#begin(last);
      else this.#cursor = -1; // the messages up to it are not stored: there was no room
    });
  }

  /** Empties the story. */
  release() {
    this.story = new Story();
    this.#low = 0;
  }

  /**
   * Handles a message from the socket. Messages that arrive during other work are processed
   * together.
   */
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

  /** Loads everything new from the relay. `seq` is the newest number, if known. */
  catchUp(seq = 0) {
    return this.#inLine(async () => {
      await this.#known();
      if (!seq || seq > this.#cursor || this.#cursor < 0) await this.#fetchNew(seq);
    });
  }

  /** Loads one more page into the story. Raises AwayError, RefusedError. */
  loadOlder() {
    this.#wanted ??= this.#inLine(() => this.#older()).finally(() => (this.#wanted = null));
    return this.#wanted;
  }

  /** Loads pages until that message is in the story. */
  loadTo(seq) {
    return this.#inLine(async () => {
      while (this.#low > 1 && this.#low > seq) await this.#older();
    });
  }

  /** Fetches one missing page and only stores it. */
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

  /** Yields the stored messages in blocks of numbers, the latest first, for the search. */
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

  /** Loads entries from disk, by number. */
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

  /** Loads the latest page, and reloads the story from there. */
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

  /**
   * Fetches and stores the page that ends before `seq`; returns its messages by number, and the
   * lowest number.
   */
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
    // Accepting an invalid page would leave a hole that is never filled.
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
    // The messages came while the session was being opened: load them with the page before.
    if (isKept) await this.#begin(this.#spans.at(-1));
    else this.#show(entries, low);
  }

  /** Loads the newest page of a span from disk. */
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

  /**
   * Stores messages in one transaction, because another tab may store messages of this session as
   * well. False if there is no room: they are shown anyway, and fetched again another time.
   */
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

  /** Runs one task at a time, because overlapping pages would move the cursor past each other. */
  #inLine(work) {
    const done = this.#line.then(work);
    this.#line = done.catch(() => {});
    return done;
  }
}

/** Whether the messages follow a number without gaps, each once. */
const isNext = (cursor) => (message) => {
  if (message.seq !== cursor + 1) return false;
  cursor += 1;
  return true;
};
const isMessage = (one) => Number.isSafeInteger(one?.seq) && one.seq > 0;
