// The relay's socket: live events, and calls to gateways. Engine.IO 4 and Socket.IO 5 over a
// WebSocket, as far as the relay speaks them. A lost connection is opened again with growing
// delays, until it is closed here.

import { AwayError, RefusedError } from "./errors.js";

const PATH = "/v1/updates/?EIO=4&transport=websocket";
const PATIENCE = 35_000;
const CONNECT_PATIENCE = 20_000;
const FIRST_WAIT = 1000;
const LONGEST_WAIT = 30_000;

/**
 * Dispatches `state` when the state changes, and `update` and `ephemeral` (CustomEvents) with the
 * relay's events.
 */
export class Socket extends EventTarget {
  state = "offline"; // "connecting" | "online" | "offline"
  retryAt = 0;
  problem = "";

  #token = "";
  #ws = null;
  #timer = 0;
  #pulse = 0;
  #silence = PATIENCE;
  #tries = 0;
  #count = 0;
  #calls = new Map();
  #isWanted = false;

  open(token) {
    this.#token = token;
    this.#isWanted = true;
    this.#connect();
  }

  /** Closes the socket for good. */
  close() {
    this.#isWanted = false;
    this.#drop();
    this.#become("offline", { retryAt: 0 });
  }

  /** The network may be back: connects at once instead of after the delay. */
  hurry() {
    if (!this.#isWanted || this.state !== "offline") return;
    this.#tries = 0;
    this.#connect();
  }

  /** Checks the connection, after a sleep that may have gone unnoticed. */
  async check() {
    if (this.state !== "online") return this.hurry();
    const before = this.#ws;
    await this.call("ping", {}, { patience: 5000 }).catch(() => {
      if (this.#ws === before) this.#lost();
    });
  }

  /** Returns the answer of the other side. Raises AwayError if there is none. */
  call(name, payload, { signal, patience = PATIENCE } = {}) {
    if (this.state !== "online") return Promise.reject(new AwayError());
    this.#count += 1;
    const number = this.#count;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => settle(reject, new AwayError()), patience);
      const settle = (how, what) => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", stop);
        this.#calls.delete(number);
        how(what);
      };
      const stop = () => settle(reject, signal.reason);
      if (signal?.aborted) return stop();
      signal?.addEventListener("abort", stop);
      this.#calls.set(number, {
        resolve: (answer) => settle(resolve, answer),
        fail: () => settle(reject, new AwayError()),
      });
      this.#ws.send(`42${number}${JSON.stringify([name, payload])}`);
    });
  }

  // ── The connection ──────────────────────────────────────────────────────────────────────────

  #connect() {
    this.#drop();
    this.#become("connecting");
    const ws = new WebSocket(location.origin.replace(/^http/, "ws") + PATH);
    this.#ws = ws;
    this.#expect(CONNECT_PATIENCE);
    ws.onmessage = ({ data }) => this.#ws === ws && typeof data === "string" && this.#hear(data);
    ws.onclose = () => this.#ws === ws && this.#lost();
  }

  #drop() {
    clearTimeout(this.#timer);
    clearTimeout(this.#pulse);
    const ws = this.#ws;
    this.#ws = null;
    ws?.close();
    for (const { fail } of [...this.#calls.values()]) fail();
  }

  #lost(problem = "") {
    this.#drop();
    this.#tries += 1;
    const wait = Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** (this.#tries - 1));
    // Random delays: many clients must not reconnect to a restarted relay at once.
    const soon = wait * (0.5 + Math.random() / 2);
    this.#timer = setTimeout(() => this.#connect(), soon);
    this.#become("offline", { problem, retryAt: Date.now() + soon });
  }

  /** Closes unless something arrives in time: a dead WebSocket can go unnoticed for minutes. */
  #expect(patience) {
    clearTimeout(this.#pulse);
    this.#pulse = setTimeout(() => this.#lost(), patience);
  }

  #become(state, { problem = "", retryAt = 0 } = {}) {
    Object.assign(this, { state, problem, retryAt });
    this.dispatchEvent(new Event("state"));
  }

  // ── Packets ─────────────────────────────────────────────────────────────────────────────────

  #hear(text) {
    if (this.state === "online") this.#expect(this.#silence);
    const [kind, rest] = [text[0], text.slice(1)];
    if (kind === "0") this.#greet(rest);
    else if (kind === "2") this.#ws.send(`3${rest}`);
    else if (kind === "1") this.#lost();
    else if (kind === "4") this.#read(rest);
  }

  #greet(rest) {
    const { pingInterval, pingTimeout } = parsed(rest) ?? {};
    if (pingInterval > 0 && pingTimeout > 0) this.#silence = pingInterval + pingTimeout;
    const auth = { token: this.#token, clientType: "user-scoped", appState: "active" };
    this.#ws.send(`40${JSON.stringify(auth)}`);
  }

  #read(packet) {
    const [, kind, number, rest] = /^(\d)(?:\/,)?(\d*)([^]*)$/.exec(packet) ?? [];
    const data = parsed(rest || "null");
    if (kind === "0") {
      this.#tries = 0;
      this.#expect(this.#silence);
      this.#become("online");
    } else if (kind === "2" && Array.isArray(data)) {
      this.#tell(data[0], data[1]);
    } else if (kind === "3" && Array.isArray(data)) {
      this.#calls.get(Number(number))?.resolve(data[0]);
    } else if (kind === "4") {
      this.#refused(String(data?.message ?? "The relay refuses the connection."));
    } else if (kind === "1") {
      this.#lost();
    }
  }

  #tell(name, detail) {
    if (name !== "update" && name !== "ephemeral") return;
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  #refused(message) {
    const isUnknown = /token/i.test(message);
    this.#lost(message);
    if (!isUnknown) return;
    clearTimeout(this.#timer);
    this.#isWanted = false;
    const error = new RefusedError(401, message);
    this.dispatchEvent(new CustomEvent("refused", { detail: error }));
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
