// A story: the rows of a conversation, built from its entries in any order. It is pure: the same
// entries give the same rows.
//
// Rows stay the same objects as long as they are shown; `revision` grows with each change to a row,
// or to a row inside it.

import { Agents } from "./agents.js";
import { isCuid } from "./bodies.js";
import { Clock, compare } from "./order.js";
import { fileRow, People, userRow } from "./people.js";
import { Tree } from "./tree.js";
import { Turns } from "./turns.js";

export class Story {
  usage = null;
  version = 0; // grows with every change

  #tree = new Tree();
  #seen = new Set();
  #clock = new Clock();
  #agents = new Agents();
  #turns = new Turns();
  #people = new People();
  #waiting = new Map(); // unsent rows, by their local ids
  #loose = new Map(); // rows of files whose text has not arrived
  #usedAt = { time: -Infinity, seq: -Infinity };

  /** The top-level rows in order; always the same array. */
  get rows() {
    return this.#tree.rows;
  }

  /** Whether a turn is open. */
  get isWorking() {
    return this.#turns.open !== null;
  }

  /** The speaker of the open turn: a guest, or null for the conversation's own agent. */
  get speaker() {
    return this.#turns.open?.guest ?? null;
  }

  /** Adds entries, of which some may be known. True if any is new. */
  add(entries) {
    const fresh = entries.filter((entry) => this.#isNew(entry)).sort((a, b) => a.seq - b.seq);
    if (!fresh.length) return false;
    const moved = this.#clock.note(fresh);
    for (const entry of fresh) this.#take(entry);
    if (fresh.some(isOfPeople)) this.#handOutFiles();
    this.#resettle(moved);
    for (const row of this.#turns.cut()) this.#tree.touch(row);
    this.version += 1;
    return true;
  }

  /**
   * Creates or updates the row of an unsent message; null if it was dropped, or has come back.
   * `files` have ids, by which they are recognized when they come back.
   */
  wait({ localId, order, time, text, files = [], state, problem = "", progress = null }) {
    let row = this.#waiting.get(localId);
    if (!row) {
      if (text === undefined || this.#seen.has(`local ${localId}`)) return null;
      row = userRow(localId, time, text);
      row.files = files.map((file) =>
        this.#people.file(file.id, () => fileRow(file.id, time, "user", file, null)));
      this.#waiting.set(localId, row);
      this.#put(row, { time: Infinity, seq: order });
    }
    Object.assign(row, { state, problem, progress });
    this.#tree.touch(row);
    this.version += 1;
    return row;
  }

  /** Removes an unsent message. */
  drop(localId) {
    const row = this.#waiting.get(localId);
    if (!row) return;
    this.#waiting.delete(localId);
    this.#tree.take(row);
    this.version += 1;
  }

  // ── Entries ─────────────────────────────────────────────────────────────────────────────────

  #isNew({ id, localId, seq }) {
    const keys = [`seq ${seq}`, id && `id ${id}`, localId && `local ${localId}`].filter(Boolean);
    const isKnown = keys.some((key) => this.#seen.has(key));
    for (const key of keys) this.#seen.add(key);
    return !isKnown;
  }

  #take(entry) {
    const { ev, subagent } = entry;
    const place = this.#clock.place(entry);
    const turn = entry.turn ? this.#turns.see(entry.turn, place) : null;
    const agent = subagent ? this.#agents.of(subagent) : null;
    if (entry.usage && compare(this.#usedAt, place) <= 0) {
      this.#usedAt = place;
      this.usage = entry.usage;
    }
    if (ev.t === "tool-call-start") this.#begin(entry, place, turn, agent);
    else if (ev.t === "tool-call-end") this.#end(turn, ev);
    else if (ev.t === "turn-end") this.#endTurn(entry, place, turn);
    else if (ev.t === "start" || ev.t === "stop") this.#startOrStop(turn, agent, ev);
    else if (ev.t === "file") this.#file(entry, place, agent);
    else if (ev.t === "service" && ev.text) this.#say(entry, place, agent);
    else if (ev.t === "text") this.#text(entry, place, agent);
  }

  #text(entry, place, agent) {
    if (entry.role === "agent") {
      if (entry.ev.text) this.#say(entry, place, agent);
      return;
    }
    const waiting = this.#waiting.get(entry.localId);
    const row = waiting ?? userRow(idOf(entry), entry.time, entry.ev.text);
    if (waiting) {
      this.#waiting.delete(entry.localId);
      this.#tree.take(row);
      Object.assign(row, { time: entry.time, state: "sent", problem: "", progress: null });
      row.revision += 1;
    }
    if (!entry.isTimed) this.#people.add(entry, row);
    this.#put(row, place);
  }

  #say(entry, place, agent) {
    const { t, text, thinking } = entry.ev;
    const row = { kind: t, id: idOf(entry), time: entry.time, revision: 1, text };
    if (t === "text") row.thinking = thinking;
    this.#put({ ...row, speaker: agent?.speaker ?? null }, place, agent);
  }

  #file(entry, place, agent) {
    const { id, time, role, ev } = entry;
    const make = () => fileRow(idOf(entry), time, role, ev, agent?.speaker ?? null);
    if (role === "agent" || entry.isTimed) {
      this.#put(make(), place, agent);
      return;
    }
    const row = this.#people.file(id, make);
    row.ref = ev.ref;
    this.#people.add(entry, row);
  }

  #begin(entry, place, turn, agent) {
    const { call, name, title, description, args } = entry.ev;
    const known = turn.calls.get(call);
    if (known) {
      Object.assign(known, { name, title, description, args: { ...known.args, ...args } });
      this.#link(known);
      this.#tree.touch(known);
      return;
    }
    const row = {
      kind: "tool",
      id: idOf(entry),
      time: entry.time,
      revision: 1,
      call,
      name,
      title,
      description,
      args,
      state: "running",
      result: "",
      durationMs: 0,
      speaker: agent?.speaker ?? null,
      children: [],
      task: null,
    };
    this.#turns.begin(turn, row);
    this.#put(row, place, agent);
    this.#link(row);
  }

  #end(turn, ev) {
    const row = turn === null ? null : this.#turns.end(turn, ev);
    if (row) this.#tree.touch(row);
  }

  #endTurn(entry, place, turn) {
    if (turn === null || turn.isOver) return;
    turn.isOver = true;
    if (entry.ev.status === "completed") return;
    const row = { kind: "end", id: idOf(entry), time: entry.time, revision: 1 };
    this.#put({ ...row, status: entry.ev.status }, place);
  }

  #startOrStop(turn, agent, ev) {
    if (agent === null) return;
    if (ev.t === "start") this.#agents.start(agent, ev.title);
    else this.#agents.stop(agent);
    if (turn && agent.host === null && agent.speaker.kind === "guest") turn.guest = agent.speaker;
    this.#touchAllOf(agent);
  }

  // ── Tasks ───────────────────────────────────────────────────────────────────────────────────

  /** Moves a task's rows, including earlier ones, into the call that delegated it. */
  #link(row) {
    const named = row.args.sessionSubagent;
    const id = isCuid(named) ? named : isCuid(row.call) ? row.call : "";
    // A call whose arguments only look like a delegation counts as one when that agent writes
    // something.
    if (!id || row.task) return;
    const agent = this.#agents.of(id);
    if (agent.host !== null || this.#tree.isInside(row, agent.rows)) return;
    if (id !== named && !agent.rows.size) {
      agent.call = row;
      return;
    }
    this.#agents.link(agent, row);
    for (const said of agent.rows) this.#tree.hang(said, row);
    this.#touchAllOf(agent);
  }

  // ── Rows ────────────────────────────────────────────────────────────────────────────────────

  #put(row, place, agent = null) {
    const call = agent?.host === null ? agent.call : null;
    if (call && !this.#tree.isInside(call, agent.rows)) this.#agents.link(agent, call);
    agent?.rows.add(row);
    this.#tree.put(row, place, agent?.host ?? null);
  }

  #touchAllOf(agent) {
    for (const row of agent.rows) this.#tree.touch(row);
    if (agent.host) this.#tree.touch(agent.host);
  }

  // ── People ──────────────────────────────────────────────────────────────────────────────────

  #handOutFiles() {
    const { groups, loose } = this.#people.sorted();
    for (const { row, files } of groups) {
      for (const file of files) this.#forgetLoose(file);
      if (isSame(files, row.files)) continue;
      row.files = files;
      this.#tree.touch(row);
    }
    const held = new Set([...this.#waiting.values()].flatMap((row) => row.files));
    for (const { entry, row: file } of loose) {
      if (held.has(file) || this.#loose.has(file)) continue;
      const row = userRow(`file ${idOf(entry)}`, entry.time, "");
      row.files = [file];
      this.#loose.set(file, row);
      this.#put(row, this.#clock.place(entry));
    }
  }

  #forgetLoose(file) {
    const row = this.#loose.get(file);
    if (!row) return;
    this.#loose.delete(file);
    this.#tree.take(row);
  }

  /** Updates messages of people whose neighbours have changed. */
  #resettle({ low, high }) {
    for (const { entry, row } of this.#people.between(low, high)) {
      const place = this.#clock.place(entry);
      if (row.kind === "user") this.#tree.move(row, place);
      else if (this.#loose.has(row)) this.#tree.move(this.#loose.get(row), place);
    }
  }
}

const isSame = (a, b) => a.length === b.length && a.every((one, at) => one === b[at]);
const isOfPeople = (entry) => entry.role === "user" && !entry.isTimed;
const idOf = ({ id, localId, seq }) => id || localId || `seq ${seq}`;
