// The record of a session: what the relay lists of it, and what its gateway says of itself in
// there, opened with the session's key.

import { open } from "../crypto/sealing.js";
import { LARGEST } from "./files.js";
import { Observable } from "./observable.js";
import { questionsOf } from "./questions.js";

export class Record extends Observable {
  key = null;
  metadata = {};
  questions = [];

  #row;
  #state = {};
  #answered = new Set();

  constructor(row) {
    super();
    this.#row = row;
  }

  /** As it is kept. */
  get row() { return this.#row; }
  get id() { return this.#row.id; }
  /** Whether it cannot be opened with our keys. */
  get isSealed() { return this.key === null; }
  get isActive() { return this.#row.active === true; }
  get updatedAt() { return this.#row.updatedAt; }
  get agent() { return text(this.metadata.name) || "agent"; }
  get title() { return text(this.metadata.summary?.text); }
  get host() { return text(this.metadata.host); }
  get path() { return text(this.metadata.path); }
  get machine() { return text(this.metadata.machineId); }
  get model() { return text(this.metadata.currentModelCode); }
  /** Kinds of clients that write here without replay protection. */
  get unprotected() { return list(this.metadata.unprotectedClients).map(text).filter(Boolean); }
  /** Whether it was put away; the next word opens it again. */
  get isArchived() { return this.metadata.lifecycleState === "archived"; }
  /** The session that took its place, with other keys or from a fresh start; empty for none. */
  get continuedBy() { return text(this.metadata.continuedBy); }

  get models() {
    return list(this.metadata.models).map((model) => text(model?.code)).filter(Boolean);
  }

  /** How much the agent may do without asking; empty where its gateway does not say. */
  get mode() { return text(this.metadata.currentOperatingModeCode); }

  get modes() {
    return list(this.metadata.operatingModes).filter((mode) => text(mode?.code)).map((mode) =>
      ({ code: mode.code, name: text(mode.value) || mode.code, about: text(mode.description) }));
  }

  /** It was changed from here; what the gateway says of itself follows. */
  takeMode(mode) {
    if (!text(mode) || mode === this.mode) return;
    this.metadata = { ...this.metadata, currentOperatingModeCode: mode };
    this.changed();
  }

  get commands() {
    const names = list(this.metadata.slashCommands).map(text).filter(Boolean);
    return names.map((name) => (name.startsWith("/") ? name : `/${name}`));
  }

  /** How many bytes a file may have. */
  get largestFile() {
    const most = this.metadata.capabilities?.attachments?.maxBytes;
    return Number.isFinite(most) ? Math.min(most, LARGEST) : LARGEST;
  }

  /** As the relay lists it, as it was on disk, or just what is other than before. What is older
   * than what is known is passed over: a list may have been on its way for a while. */
  async take(row) {
    const before = this.#row;
    const [isTold, isState] = ["metadata", "agentState"].map((part) => isNews(before, row, part));
    this.#row = {
      ...before,
      ...row,
      ...(isTold ? {} : versionOf(before, "metadata")),
      ...(isState ? {} : versionOf(before, "agentState")),
      key: row.key ?? before.key,
      seq: Math.max(before.seq, row.seq ?? 0),
      updatedAt: Math.max(before.updatedAt, row.updatedAt ?? 0),
    };
    this.key = this.#row.key ?? null;
    if (this.key && isTold) await this.#read(row, "metadata", (value) => (this.metadata = value));
    if (this.key && isState) await this.#read(row, "agentState", (value) => (this.#state = value));
    this.#ask();
  }

  /** Something came at that time, with that number. */
  moved(seq, at) {
    const { seq: last, updatedAt } = this.#row;
    this.#row = { ...this.#row, seq: Math.max(last, seq), updatedAt: Math.max(updatedAt, at) };
    this.changed();
  }

  /** Whether somebody is there, as the relay hears it. */
  active({ active, activeAt }) {
    if (this.#row.active === active) return;
    this.#row = { ...this.#row, active, activeAt };
    this.changed();
  }

  /** A question that need not be asked any more, whatever the gateway still says. */
  settle(questionId) {
    this.#answered.add(questionId);
    this.#ask();
  }

  async #read(row, part, keep) {
    const value = row[part] ? await open(this.key, row[part]) : null;
    // Meanwhile another may have come.
    if (this.#row[part] === row[part]) keep(value ?? {});
  }

  #ask() {
    this.questions = questionsOf(this.#state).filter(({ id }) => !this.#answered.has(id));
    this.changed();
  }
}

const isNews = (before, row, part) =>
  row[part] !== undefined && !(row[`${part}Version`] < before[`${part}Version`]);
const versionOf = (row, part) => ({ [part]: row[part], [`${part}Version`]: row[`${part}Version`] });
const text = (value) => (typeof value === "string" ? value : "");
const list = (value) => (Array.isArray(value) ? value : []);
