// A device of an account. It stores keys and sessions in the browser, talks to the relay that
// served the page, and draws nothing.

import { toWords, fromWords } from "../crypto/backup.js";
import { random, toBase64 } from "../crypto/bytes.js";
import { importKey, open } from "../crypto/sealing.js";
import { Backoff } from "../relay/backoff.js";
import { expect } from "../relay/errors.js";
import { Http } from "../relay/http.js";
import { Socket } from "../relay/socket.js";
import { Account } from "./account.js";
import { clientName } from "./client.js";
import { Files } from "./files.js";
import { Filler, whenIdle } from "./filler.js";
import { invite, join, seedOf } from "./invitation.js";
import { Observable } from "./observable.js";
import { Outbox } from "./outbox.js";
import { Roster } from "./roster.js";
import { Search } from "./search.js";
import { Store } from "./store.js";
import { whenWiped, wipe } from "./wiping.js";

const SECRET = 32;

/** Dispatches `change` when its stage, its connection or its list of sessions changes. */
export class Device extends Observable {
  stage = "new"; // "ready" | "unsupported" | "failed"
  problem = "";
  isRevoked = false;
  connection = { state: "offline", since: Date.now(), problem: "", retryAt: 0 };
  store = null;
  account = null;
  http = new Http("", clientName());
  socket = new Socket();
  files = null;
  outbox = null;
  roster = null;

  #search = new Search();
  #filler = new Filler(() => this.sessions, () => this.isOnline);
  #syncing = null;
  #isWired = false;
  #backoff = new Backoff();

  /** Loads the device from this browser. Never fails if it is new here. */
  static async open() {
    const device = new Device();
    if (!globalThis.crypto?.subtle) {
      device.stage = "unsupported";
      device.problem = "A browser keeps keys only for pages that came by https.";
      return device;
    }
    try {
      await device.#prepare();
      const account = await Account.kept(device.store);
      if (account) await device.#start(account);
    } catch (error) {
      device.stage = "failed";
      device.problem = error.message;
    }
    return device;
  }

  // ── Getting in ──────────────────────────────────────────────────────────────────────────────

  /** Creates an account, with an invite if the relay requires one. Raises Error with a sentence. */
  async create(invite = "") {
    await this.#enter(random(SECRET), invite);
  }

  /** Restores an account from its backup text. Raises Error with a sentence. */
  async restore(words, invite = "") {
    const secret = fromWords(words);
    if (!secret) throw new Error("These are not all the words. There are 52 letters and digits.");
    await this.#enter(secret, invite);
  }

  /**
   * Joins the account of the device that made the link. `seed` is the link's seed, or the whole
   * link.
   */
  async join(seed, onStep, options) {
    const bytes = typeof seed === "string" ? seedOf(seed) : seed;
    await this.#prepare();
    const { secret, token } = await join(this.http, bytes, onStep, options);
    await this.#keep(await Account.of(this.store, secret), token);
  }

  /** Logs in again after this device was removed from the account. */
  async logInAgain() {
    await this.#keep(this.account, await this.#logIn(this.account));
  }

  async #enter(secret, invite = "") {
    await this.#prepare();
    const account = await Account.of(this.store, secret);
    await this.#keep(account, await this.#logIn(account, invite));
  }

  async #logIn(account, invite = "") {
    const stranger = new Http("", this.http.client);
    const { nonce } = await stranger.post("/v1/auth/nonce", {});
    expect(typeof nonce === "string");
    const login = await account.login(nonce);
    const { token } = await stranger.post("/v1/auth", invite ? { ...login, invite } : login);
    return expect(typeof token === "string" && token, token);
  }

  async #keep(account, token) {
    await account.keep(token);
    navigator.storage?.persist?.().catch(() => {}); // unsent messages should not be evicted
    await this.#start(account);
  }

  // ── Others ──────────────────────────────────────────────────────────────────────────────────

  invite() {
    return invite(this.http, this.account);
  }

  /** Approves the machine that shows this key. Raises Error with a sentence. */
  async letMachineIn(key, { signal } = {}) {
    const publicKey = toBase64(key);
    const query = `publicKey=${encodeURIComponent(publicKey)}`;
    const { status } = await this.http.get(`/v1/auth/request/status?${query}`, { signal });
    if (status === "not_found") {
      throw new Error("This link is too old. Run crabtalk-web again and open the new one.");
    }
    if (status !== "pending") throw new Error("This machine was let in before.");
    const response = await this.account.approval(key);
    await this.http.post("/v1/auth/response", { publicKey, response }, { signal });
  }

  async backupWords() {
    return toWords(await this.account.masterSecret());
  }

  async machines() {
    const rows = await this.http.get("/v1/machines");
    expect(Array.isArray(rows));
    return Promise.all(rows.map(async ({ id, metadata, dataEncryptionKey, ...row }) => {
      const bytes = await this.account.recordKey(dataEncryptionKey);
      const told = (bytes && (await open(await importKey(bytes), metadata))) || {};
      const { host = "", displayName = host || id } = told;
      const { active, activeAt } = this.roster.present.get(id) ?? row;
      return { id, name: displayName, host, active, activeAt };
    }));
  }

  async devices() {
    const { devices } = await this.http.get("/v1/devices");
    return expect(Array.isArray(devices), devices).map(({ id, kind, client, createdAt, seenAt, current }) =>
      ({ id, kind, client, createdAt, lastSeenAt: seenAt, isThis: current }));
  }

  async revoke(id) {
    await this.http.delete(`/v1/devices/${encodeURIComponent(id)}`);
  }

  /** Deletes everything in this browser, and this device at the relay if it can be reached. */
  async logOut() {
    this.socket.close();
    if (this.account && !this.isRevoked) {
      const own = (await this.devices().catch(() => [])).find(({ isThis }) => isThis);
      if (own) await this.revoke(own.id).catch(() => {});
    }
    this.http.token = "";
    await wipe(this.store);
    this.store = null;
    this.account = null;
    this.isRevoked = false;
    this.roster = null;
    this.#search = new Search();
    this.stage = "new";
    this.changed();
  }

  // ── Sessions ────────────────────────────────────────────────────────────────────────────────

  get isOnline() {
    return this.connection.state === "online";
  }

  /** Returns the sessions, those with the latest activity first. */
  get sessions() {
    const found = [...(this.roster?.sessions.values() ?? [])];
    return found.sort((a, b) => b.updatedAt - a.updatedAt);
  }

  session(id) {
    return this.roster?.sessions.get(id) ?? null;
  }

  /** Searches everything on this device; an async iterator of hits. */
  search(query, options) {
    return this.#search.find(this.sessions, query, options);
  }

  // ── Beginning ───────────────────────────────────────────────────────────────────────────────

  /** Loads what is stored. After a log out there is nothing. */
  async #prepare() {
    if (this.store) return;
    this.store = await Store.open();
    this.files = new Files(this.store, this.http);
    const sessionOf = (id) => this.session(id);
    this.outbox = new Outbox(this.store, this.http, this.files, sessionOf, () => this.isOnline);
    this.roster = new Roster(this);
  }

  async #start(account) {
    this.account = account;
    this.http.token = account.token;
    this.http.onRevoked = () => this.#revoked();
    this.isRevoked = false;
    await Promise.all([this.roster.recall(), this.outbox.open()]);
    this.stage = "ready";
    if (!this.#isWired) this.#wire();
    this.socket.open(account.token);
    this.changed();
  }

  #wire() {
    this.#isWired = true;
    this.socket.addEventListener("state", () => this.#connected());
    this.socket.addEventListener("refused", () => this.#revoked());
    this.socket.addEventListener("update", ({ detail }) => this.#update(detail?.body ?? {}));
    this.socket.addEventListener("ephemeral", ({ detail }) => this.roster.hear(detail ?? {}));
    addEventListener("online", () => this.socket.hurry());
    addEventListener("offline", () => this.socket.check());
    document.addEventListener("visibilitychange", () => !document.hidden && this.socket.check());
    whenWiped(() => location.reload());
  }

  #connected() {
    const { state, problem, retryAt } = this.socket;
    const since = state === this.connection.state ? this.connection.since : Date.now();
    this.connection = { state, since, problem, retryAt };
    this.changed();
    if (state !== "online") return;
    for (const session of this.sessions) session.resume();
    this.#sync().catch((error) => this.#failed(error));
  }

  #revoked() {
    this.isRevoked = true;
    this.socket.close();
    const problem = "This device was taken out of the account. Log in again, or log out.";
    this.connection = { state: "offline", since: Date.now(), problem, retryAt: 0 };
    this.changed();
  }

  // ── What the relay tells ────────────────────────────────────────────────────────────────────

  /** Fetches everything that may have happened without a notification. */
  async #sync() {
    this.outbox.send();
    this.#syncing ??= this.roster.list().finally(() => (this.#syncing = null));
    const isDone = await this.#syncing.then(() => true, () => false);
    if (!isDone) {
      this.#backoff.plan(() => this.isOnline && this.#sync());
      return;
    }
    this.#backoff.reset();
    // Open sessions first.
    const behind = this.sessions.filter((one) => one.isOpen || one.isBehind);
    for (const session of behind.sort((a, b) => b.isOpen - a.isOpen)) {
      await session.catchUp(session.row.seq);
    }
    this.outbox.send();
    await this.#fill();
  }

  async #fill() {
    await this.#filler.start();
    await this.#search.prepare(this.sessions, whenIdle);
  }

  async #update(body) {
    try {
      await this.roster.update(body);
      if (body.t === "new-session") await this.#fill();
    } catch (error) {
      this.#failed(error);
    }
  }

  /** After a log out, operations in progress stop here. */
  #failed(error) {
    if (this.store && !this.store.isGone) throw error;
  }
}
