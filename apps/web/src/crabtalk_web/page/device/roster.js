// The roster: the list of sessions, on disk and at the relay.

import { importKey } from "../crypto/sealing.js";
import { expect } from "../relay/errors.js";
import { Session } from "./session.js";

const PAGE = 200;
// The tables with data of a session, besides its messages.
const TABLES = ["sessions", "marks", "spans", "drafts"];

export class Roster {
  sessions = new Map();
  present = new Map(); // presence events of machines, which are newer than their rows
  #home;
  #removed = new Set(); // since the last full list from the relay

  /** `home` is the device. */
  constructor(home) {
    this.#home = home;
  }

  /** Loads the sessions from disk, before anything is fetched. */
  async recall() {
    if (this.sessions.size) return; // the sessions are in use
    const rows = await Promise.all(TABLES.map((name) => this.#home.store.all(name)));
    const [, marks, spans, drafts] = rows.map(byId);
    await Promise.all(rows[0].map(async (row) => {
      const session = new Session(this.#home, row);
      await session.take(row);
      const { id } = row;
      await session.recall({ marks: marks.get(id), spans: spans.get(id), begun: drafts.get(id) });
      this.sessions.set(id, session);
    }));
  }

  /** Fetches the sessions from the relay. Raises AwayError, RefusedError. */
  async list() {
    const found = new Set();
    // sessions that are added meanwhile may not be in the list
    const before = [...this.sessions.keys()];
    this.#removed.clear();
    for (let cursor = ""; cursor !== null; ) {
      const after = cursor && `&cursor=${encodeURIComponent(cursor)}`;
      const page = await this.#home.http.get(`/v2/sessions?limit=${PAGE}${after}`);
      expect(Array.isArray(page.sessions) && page.sessions.every((row) => row?.id));
      const there = page.sessions.filter(({ id }) => !this.#removed.has(id));
      await Promise.all(there.map((row) => this.#take(row)));
      for (const { id } of page.sessions) found.add(id);
      cursor = page.hasNext ? page.nextCursor : null;
    }
    for (const id of before) {
      if (!found.has(id)) await this.#forget(id);
    }
    this.#home.changed();
  }

  /** Handles an update of the relay. */
  async update(body) {
    const session = this.sessions.get(body.sid ?? body.id);
    if (body.t === "new-message") {
      session?.hear(body.message);
      return;
    }
    if (body.t === "new-session") await this.#take(body);
    else if (body.t === "delete-session") await this.#remove(body.sid);
    else if (body.t === "update-session" && session) await this.#take(changeOf(body));
    this.#home.changed();
  }

  /** Handles an ephemeral event of the relay, which it does not store. */
  hear(told) {
    if (told.type === "activity") this.sessions.get(told.id)?.active(told);
    if (told.type === "machine-activity") this.present.set(told.id, told);
    if (told.type === "activity" || told.type === "machine-activity") this.#home.changed();
  }

  async #take(row) {
    const known = this.sessions.get(row.id);
    const session = known ?? new Session(this.#home, { ...row, key: null });
    // Once for each session: from then on its key is non-extractable.
    const bytes = session.key
      ? null
      : await this.#home.account.recordKey(session.row.dataEncryptionKey);
    await session.take(bytes ? { ...row, key: await importKey(bytes) } : row);
    if (!this.sessions.has(row.id)) this.sessions.set(row.id, session);
    await this.#home.store.put("sessions", session.row);
  }

  async #remove(id) {
    this.#removed.add(id);
    await this.#forget(id);
  }

  async #forget(id) {
    this.sessions.delete(id);
    await this.#home.outbox.forget(id);
    const all = IDBKeyRange.bound([id, 0], [id, Infinity]);
    await this.#home.store.change([...TABLES, "messages"], async (tables) => {
      for (const name of TABLES) tables[name].delete(id);
      tables.messages.delete(all);
    });
  }
}

const byId = (rows) => new Map(rows.map((row) => [row.id, row]));

function changeOf({ id, metadata, agentState }) {
  const row = { id };
  if (metadata) Object.assign(row, { metadata: metadata.value, metadataVersion: metadata.version });
  if (agentState) {
    Object.assign(row, { agentState: agentState.value, agentStateVersion: agentState.version });
  }
  return row;
}
