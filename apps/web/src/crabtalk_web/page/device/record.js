// The record of a session: what the relay lists about it, and the metadata and state of its
// gateway, opened with the session's key.

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

  /** Returns the form in which it is stored. */
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
  /** The names of clients that write here without replay protection. */
  get unprotected() { return list(this.metadata.unprotectedClients).map(text).filter(Boolean); }
  /** Whether it is archived; the next message opens it again. */
  get isArchived() { return this.metadata.lifecycleState === "archived"; }
  /** The id of the session that replaced it; empty for none. */
  get continuedBy() { return text(this.metadata.continuedBy); }

  get models() {
    return list(this.metadata.models).map((model) => text(model?.code)).filter(Boolean);
  }

  /** How much the agent may do without asking; empty if its gateway does not say. */
  get mode() { return text(this.metadata.currentOperatingModeCode); }

  get modes() {
    return list(this.metadata.operatingModes).filter((mode) => text(mode?.code)).map((mode) =>
      ({ code: mode.code, name: text(mode.value) || mode.code, about: text(mode.description) }));
  }

  /** The mode was changed on this device; the gateway's metadata follows. */
  takeMode(mode) {
    if (!text(mode) || mode === this.mode) return;
    this.metadata = { ...this.metadata, currentOperatingModeCode: mode };
    this.changed();
  }

  get commands() {
    const names = list(this.metadata.slashCommands).map(text).filter(Boolean);
    return names.map((name) => (name.startsWith("/") ? name : `/${name}`));
  }

  /** The size limit of files in bytes. */
  get largestFile() {
    const most = this.metadata.capabilities?.attachments?.maxBytes;
    return Number.isFinite(most) ? Math.min(most, LARGEST) : LARGEST;
  }

  /**
   * Updates the record with a row of the relay, a row from disk, or single changed values. Values
   * older than the known ones are skipped, because a list may arrive late.
   */
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

  /** A message with this number arrived at that time. */
  moved(seq, at) {
    const { seq: last, updatedAt } = this.#row;
    this.#row = { ...this.#row, seq: Math.max(last, seq), updatedAt: Math.max(updatedAt, at) };
    this.changed();
  }

  /** Whether the gateway is online, according to the relay. */
  active({ active, activeAt }) {
    if (this.#row.active === active) return;
    this.#row = { ...this.#row, active, activeAt };
    this.changed();
  }

  /** Hides a question that was answered, whatever the gateway still publishes. */
  settle(questionId) {
    this.#answered.add(questionId);
    this.#ask();
  }

  async #read(row, part, keep) {
    const value = row[part] ? await open(this.key, row[part]) : null;
    // A newer value may have arrived in the meantime.
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
