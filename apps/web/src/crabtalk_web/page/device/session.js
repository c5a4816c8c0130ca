// A session: one conversation with one agent on this device. It reads and sends messages; its
// record has the facts about it.

import { bind, open, seal } from "../crypto/sealing.js";
import { Backoff } from "../relay/backoff.js";
import { readMessage } from "../story/bodies.js";
import { Digest, lineOf } from "./digest.js";
import { History } from "./history.js";
import { Live } from "./live.js";
import { answerTo } from "./questions.js";
import { Record } from "./record.js";

// How long a sent message may take to come back before it is fetched.
const ECHO = 1500;
// Stories with more rows are dropped when the conversation is closed.
const KEPT_ROWS = 1000;

/** Dispatches `change`, and `live` with each piece of text that is being written. */
export class Session extends Record {
  isOpen = false;
  live = null;
  draft = "";

  #home;
  #history;
  #live;
  #digest = new Digest(null);
  #count = 0;
  #backoff = new Backoff();

  /** `home` is the device, with its store, http, socket, files and outbox. */
  constructor(home, row) {
    super(row);
    this.#home = home;
    this.#history = new History(this, home.store, home.http);
    this.#live = new Live((...call) => this.call(...call), () => this.#grown());
  }

  get seq() { return Math.max(this.row.seq, this.#history.cursor, 0); }
  /** Unread texts. */
  get unread() { return this.#digest.unread; }
  get preview() { return this.#digest.preview; }
  get story() { return this.#history.story; }
  get usage() { return this.story.usage; }

  /**
   * Whether a turn is open. Its live text takes another way than its rows, and may arrive first.
   */
  get isWorking() {
    if (this.live) return true;
    return this.isOpen && this.story.rows.length ? this.story.isWorking : this.#digest.isWorking;
  }

  get history() {
    const { state, hasOlder, loaded, problem } = this.#history;
    return { state, hasOlder, loaded, total: this.seq, problem };
  }

  // ── Reading ─────────────────────────────────────────────────────────────────────────────────

  /** Loads the newest page from disk at once, then what is new at the relay, and live text. */
  async open() {
    if (this.isSealed) return;
    this.isOpen = true;
    await this.#history.open();
    await this.begun();
    this.changed();
    this.#live.start();
    await this.catchUp();
  }

  close() {
    this.isOpen = false;
    this.#live.stop();
    this.live = null;
    if (this.story.rows.length > KEPT_ROWS) this.#history.release();
  }

  loadOlder() { return this.#history.loadOlder(); }
  loadTo(seq) { return this.#history.loadTo(seq); }

  /** Marks everything so far as read. */
  seen() {
    if (!this.#digest.look()) return;
    this.#remember();
    this.changed();
  }

  /** Fetches what is new at the relay, if it can be reached. */
  async catchUp(seq = 0) {
    if (this.isSealed) return;
    await this.#history.catchUp(seq).then(() => this.#backoff.reset(), () => this.#later());
  }

  /** Returns the file of a row as a Blob. `onProgress` gets a fraction from 0 to 1. */
  file(row, options) { return this.#home.files.fetch(this, row, options); }

  // ── Talking ─────────────────────────────────────────────────────────────────────────────────

  /** Returns the row of a new message at once; null if there is nothing to send. */
  send(words, files = []) {
    if (!words.trim() && !files.length) return null;
    const row = this.#home.outbox.add(this, words, [...files]);
    this.changed();
    return row;
  }

  /** Stores a draft, so that it survives a reload. */
  async keepDraft(words) {
    this.draft = words;
    const { store } = this.#home;
    if (!words) return store.delete("drafts", this.id);
    await store.put("drafts", { id: this.id, words: await seal(this.key, words) });
  }

  retry(rowId) { return this.#home.outbox.retry(rowId); }

  async discard(rowId) {
    this.unshow(rowId);
    await this.#home.outbox.discard(rowId);
  }

  /** Stops the turn. Succeeds as well if no turn is open. */
  async abort() {
    const told = await this.call("abort", {});
    if (told?.error) throw new Error(told.error);
  }

  /** Sets how much the agent may do without asking. */
  async setMode(mode) {
    const told = await this.call("setMode", { mode });
    if (told?.error) throw new Error(told.error);
    this.takeMode(told?.mode);
  }

  answer(questionId, answers) { return this.#reply(questionId, answers); }
  dismiss(questionId) { return this.#reply(questionId, null); }

  async #reply(questionId, answers) {
    const question = this.questions.find(({ id }) => id === questionId);
    if (!question) return { already: true };
    const told = await this.call(...answerTo(question, answers));
    if (told?.error && told.error !== "already answered") throw new Error(told.error);
    this.settle(questionId);
    return { already: Boolean(told?.error) };
  }

  /** Calls the session's gateway. Null for an empty answer. Raises Error with a sentence. */
  async call(method, params, options) {
    this.#count += 1;
    const bound = bind(params, `rpc:${method}`, this.id, this.#count);
    const request = { method: `${this.id}:${method}`, params: await seal(this.key, bound) };
    const told = await this.#home.socket.call("rpc-call", request, options);
    if (told?.ok) return open(this.key, told.result);
    const isAway = /not available|left before/.test(told?.error ?? "");
    const away = `${this.host || "The machine"} is not connected. Start crabtalk-web there.`;
    throw new Error(isAway ? away : (told?.error ?? "The machine did not answer. Try again."));
  }

  // ── What the device tells it ────────────────────────────────────────────────────────────────

  /** Loads the read position and the draft of an earlier page. */
  async recall({ marks, spans, begun }) {
    if (this.isSealed) return;
    this.#history.recall(spans?.spans ?? []);
    if (begun) this.draft = (await open(this.key, begun.words)) ?? "";
    if (!marks) return;
    this.#digest = new Digest(marks);
    this.moved(0, marks.updatedAt ?? 0);
    if (!marks.previewSeq) return;
    const key = [this.id, marks.previewSeq];
    const message = await this.#home.store.get("messages", key);
    const entry = message && readMessage(message, await this.unseal(message.c));
    if (entry) this.#digest.preview = lineOf(entry.ev);
  }

  /** The connection to the gateway is back. */
  resume() {
    if (!this.isOpen) return;
    this.#live.stop();
    this.#live.start();
  }

  hear(message) { return this.#history.hear(message).catch(() => this.#later()); }

  get isWhole() { return this.isSealed || this.#history.isWhole; }
  get isUnread() { return !this.isSealed && this.#history.cursor < 0; }
  get isBehind() { return !this.isUnread && this.#history.cursor < this.row.seq; }
  fill() { return this.#history.fill(); }
  blocks() { return this.#history.blocks(); }
  entries(low, high) { return this.#history.entries(low, high); }
  rawKey() { return this.#home.account.recordKey(this.row.dataEncryptionKey); }

  // ── What its history, its outbox and its live text tell it ──────────────────────────────────

  unseal(sealed) { return open(this.key, sealed); }

  /** Handles new entries, by number. */
  heard(entries, high) {
    for (const { ev } of entries) {
      if (ev.refused) this.#home.outbox.refused(this.id, ev.refused).catch(() => {});
    }
    this.#digest.take(entries, high);
    this.moved(high, Math.max(0, ...entries.map(({ at }) => at)));
    this.#live.hurry();
    this.#remember();
    this.#home.changed();
  }

  /** Entries have become rows: their live text is removed. */
  shown(entries) {
    this.#live.settle(entries);
    this.#grown();
    this.changed();
  }

  /** Starts with a new story; unsent messages are part of it. */
  begun() { return this.#home.outbox.showIn(this); }

  show(item) {
    const row = this.story.wait(item);
    this.changed();
    return row;
  }

  unshow(localId) {
    this.story.drop(localId);
    this.changed();
  }

  sent(seq) {
    setTimeout(() => this.#history.cursor < seq && this.catchUp(seq), ECHO);
  }

  /** Tries once more if there is a connection, else the next connection does. */
  #later() {
    this.#backoff.plan(() => this.#home.isOnline && this.catchUp());
  }

  #grown() {
    const was = this.live;
    this.live = this.isOpen ? this.#live.shown : null;
    if (was || this.live) this.dispatchEvent(new Event("live"));
  }

  #remember() {
    const marks = { id: this.id, updatedAt: this.updatedAt, ...this.#digest.plain };
    this.#home.store.put("marks", marks).catch(() => {});
  }
}
