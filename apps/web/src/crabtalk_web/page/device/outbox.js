// The outbox: messages that are not at the relay yet. An item is stored sealed before it is sent;
// the oldest goes first; and each has an id by which the relay recognizes it, so that it is stored
// once even if sent twice. Its place in the chain is decided when it is first sent.

import { sealFile } from "../crypto/blobs.js";
import { blobKey } from "../crypto/keys.js";
import { open, seal } from "../crypto/sealing.js";
import { Backoff } from "../relay/backoff.js";
import { expect, RefusedError } from "../relay/errors.js";
import { Chains } from "./chain.js";
import { pictureOf } from "./picture.js";
import { result } from "./store.js";

const LOCK = "crabtalk outbox";

export class Outbox {
  #store;
  #chains;
  #http;
  #files;
  #sessionOf;
  #isOnline;
  #items = new Map();
  #lastOrder = 0;
  #isSending = false;
  #isAsked = false;
  #backoff = new Backoff();
  #packing = Promise.resolve();
  #unpacked = new Map(); // how to pack items again that could not be stored

  /** `sessionOf` returns a session by its id; `isOnline` says whether sending makes sense. */
  constructor(store, http, files, sessionOf, isOnline) {
    this.#store = store;
    this.#chains = new Chains(store);
    this.#http = http;
    this.#files = files;
    this.#sessionOf = sessionOf;
    this.#isOnline = isOnline;
  }

  /** Loads the items that were waiting before this page was loaded. */
  async open() {
    const items = await this.#store.all("outbox");
    for (const item of items.sort(byOrder)) {
      this.#lastOrder = Math.max(this.#lastOrder, item.order);
      this.#items.set(item.localId, item);
    }
  }

  /** Creates rows for all waiting items of a session. */
  async showIn(session) {
    for (const item of [...this.#items.values()].filter(({ id }) => id === session.id)) {
      const body = await open(session.key, item.body);
      const files = await Promise.all(item.files.map(async (file) =>
        ({ ...(await open(session.key, file.told)), id: file.id, ref: "" })));
      session.show({ ...item, text: body?.content.text ?? "", files });
    }
  }

  /** Returns the row of a new message. It is stored a moment later, and sent when possible. */
  add(session, text, files) {
    this.#lastOrder = Math.max(this.#lastOrder + 1, Date.now());
    const item = {
      localId: crypto.randomUUID(),
      order: this.#lastOrder,
      id: session.id,
      time: Date.now(),
      state: "waiting",
      problem: "",
    };
    const parts = files.map((blob) => ({ id: envelopeId(), blob, told: toldOf(blob) }));
    for (const { id, blob } of parts) this.#files.have(id, blob);
    const shown = parts.map(({ id, told }) => ({ ...told, id, ref: "" }));
    const row = session.show({ ...item, text, files: shown });
    // One at a time, so that a later message does not overtake a large file.
    this.#packing = this.#packing.then(() => this.#pack(session, item, text, parts, row));
    return row;
  }

  async #pack(session, item, text, parts, row) {
    try {
      checkSizes(session, parts);
      const key = parts.length ? await blobKey(await session.rawKey()) : null;
      item.files = [];
      for (const [at, { id, blob, told }] of parts.entries()) {
        told.image = await pictureOf(blob);
        row.files[at].image = told.image;
        row.files[at].revision += 1;
        session.show(item);
        const sealed = await sealFile(key, new Uint8Array(await blob.arrayBuffer()));
        item.files.push({ id, told: await seal(session.key, told), sealed, ref: "" });
      }
      item.body = await seal(session.key, bodyOf(text));
      await this.#store.putSafely("outbox", item);
    } catch (error) {
      const full = "The browser could not keep this. Free some space and send it again.";
      const problem = error instanceof RangeError ? error.message : full;
      session.show({ ...item, state: "failed", problem });
      this.#unpacked.set(item.localId, () => this.#pack(session, item, text, parts, row));
      return;
    }
    this.#items.set(item.localId, item);
    this.send();
  }

  /** Tries a refused item again. */
  async retry(localId) {
    const pack = this.#unpacked.get(localId);
    if (pack) {
      this.#unpacked.delete(localId);
      return pack();
    }
    const item = this.#items.get(localId);
    if (!item) return;
    await this.#become(item, "waiting");
    this.send();
  }

  async discard(localId) {
    this.#items.delete(localId);
    this.#unpacked.delete(localId);
    let kept;
    // In one transaction: a message that is sealed between two steps would leave a gap in its
    // chain.
    await this.#store.change(["outbox"], async ({ outbox }) => {
      kept = await result(outbox.get(localId));
      outbox.delete(localId);
    });
    // The relay may or may not have it, so the next message cannot link to it.
    if (kept?.sealed) await this.#chains.restart(kept.id);
  }

  /**
   * The gateway refused one of our messages. The next one starts a new chain, or it would be
   * refused as well.
   */
  async refused(session, { reason, chain }) {
    if (chain && reason !== "repeat") await this.#chains.restart(session, chain);
  }

  /** The session is gone, so its items are dropped. */
  async forget(session) {
    for (const { localId, id } of [...this.#items.values()]) {
      if (id === session) await this.discard(localId);
    }
  }

  /**
   * Sends all items one after the other until the relay is unavailable. Never in two tabs at the
   * same time: harmless, but files would be sent twice.
   */
  async send() {
    this.#isAsked = true;
    if (this.#isSending) return;
    this.#isSending = true;
    try {
      while (this.#isAsked) {
        this.#isAsked = false;
        await alone(() => this.#sendAll());
      }
      this.#backoff.reset();
    } catch {
      // Nothing is lost: it is sent after a while, or when there is a connection again.
      this.#backoff.plan(() => this.#isOnline() && this.send());
    } finally {
      this.#isSending = false;
    }
  }

  async #sendAll() {
    for (const item of [...this.#items.values()].sort(byOrder)) {
      if (item.state === "failed" || !this.#items.has(item.localId)) continue;
      const session = this.#sessionOf(item.id);
      if (!session) continue;
      try {
        await this.#sendOne(session, item);
      } catch (error) {
        const isFinal = error instanceof RefusedError && !error.isPassing && error.status !== 401;
        await this.#become(item, isFinal ? "failed" : "waiting", isFinal ? error.message : "");
        if (isFinal) await this.#chains.restart(item.id);
        if (!isFinal) throw error;
      }
    }
  }

  async #sendOne(session, item) {
    const kept = await this.#store.get("outbox", item.localId);
    if (!kept) return this.#sent(session, item); // sent by another tab
    item.files = kept.files;
    item.sealed = kept.sealed;
    const total = item.files.reduce((sum, { sealed }) => sum + sealed.length, 0);
    let done = 0;
    for (const file of item.files) {
      const tell = (part) => {
        const progress = (done + part * file.sealed.length) / total;
        session.show({ ...item, state: "sending", progress });
      };
      if (!file.ref) file.ref = await this.#upload(session, file, tell);
      await this.#keep(item);
      done += file.sealed.length;
    }
    if (!this.#items.has(item.localId)) return; // dropped in the meantime
    session.show({ ...item, state: "sending", progress: null });
    const messages = await this.#messages(session, item);
    if (!messages) return;
    const answer = await this.#http.post(`/v3/sessions/${item.id}/messages`, { messages });
    const receipt = receiptOf(answer, item.localId);
    await this.#store.delete("outbox", item.localId);
    for (const { ref, sealed } of item.files) await this.#files.keep(ref, sealed);
    this.#sent(session, item);
    session.sent(receipt.seq);
  }

  /**
   * Returns its files and its text, sealed once and for all; null if it was dropped in the
   * meantime.
   */
  async #messages(session, item) {
    const ids = [...item.files.map(({ id }) => id), item.localId];
    if (!item.sealed) {
      const bodies = await Promise.all(item.files.map(async ({ id, told, ref }) =>
        envelopeOf(id, item, ref, await open(session.key, told))));
      bodies.push(await open(session.key, item.body));
      if (!(await this.#seal(session, item, bodies))) return null;
    }
    return ids.map((localId, at) => ({ localId, content: item.sealed[at] }));
  }

  async #seal(session, item, bodies) {
    // Without locks two tabs could send in any order, which would break the chain.
    if (!navigator.locks) {
      item.sealed = await Promise.all(bodies.map((body) => seal(session.key, body)));
      return true;
    }
    const { messages: sealed, state } = await this.#chains.extend(session, bodies);
    if (!(await this.#chains.keep(session, state, { ...item, sealed }))) return false;
    item.sealed = sealed;
    return true;
  }

  #sent(session, item) {
    this.#items.delete(item.localId);
    session.show({ ...item, state: "sent" });
  }

  async #upload(session, { sealed }, onProgress) {
    const where = `/v1/sessions/${session.id}/attachments/request-upload`;
    const { ref, uploadUrl } = await this.#http.post(where, { size: sealed.length });
    expect(typeof ref === "string" && typeof uploadUrl === "string");
    onProgress(0);
    await this.#http.upload(uploadUrl, sealed, { onProgress });
    return ref;
  }

  async #become(item, state, problem = "") {
    Object.assign(item, { state, problem });
    this.#sessionOf(item.id)?.show({ ...item, progress: null });
    await this.#keep(item);
  }

  /** An item that was dropped in the meantime must not come back. */
  async #keep(item) {
    if (this.#items.has(item.localId)) await this.#store.putSafely("outbox", item);
  }
}

/** Raises RangeError with a sentence. */
function checkSizes({ largestFile }, parts) {
  const large = parts.find(({ blob }) => blob.size > largestFile);
  if (!large) return;
  const most = Math.floor(largestFile / 1024 / 1024);
  throw new RangeError(`${large.told.name} is too large: a file may have ${most} MB.`);
}

/** The relay must confirm exactly this message. */
function receiptOf({ messages }, localId) {
  const given = Array.isArray(messages) ? messages : [];
  const receipt = given.find((one) => one?.localId === localId);
  return expect(Number.isSafeInteger(receipt?.seq), receipt);
}

const byOrder = (a, b) => a.order - b.order;
const bodyOf = (text) =>
  ({ role: "user", content: { type: "text", text }, meta: { sentFrom: "web" } });

function envelopeOf(id, { time }, ref, { name, size, mimeType, image }) {
  const ev = { t: "file", ref, name, size, mimeType, ...(image ? { image } : {}) };
  return { role: "session", content: { id, time, role: "user", ev }, meta: { sentFrom: "web" } };
}

function toldOf(blob) {
  const mimeType = blob.type || "application/octet-stream";
  return { name: blob.name || "file", size: blob.size, mimeType, image: null };
}

/** A letter and 23 letters or digits: every reader accepts it as an id. */
function envelopeId() {
  const bytes = crypto.getRandomValues(new Uint8Array(23));
  return `c${Array.from(bytes, (byte) => (byte % 36).toString(36)).join("")}`;
}

function alone(work) {
  return navigator.locks ? navigator.locks.request(LOCK, work) : work();
}
