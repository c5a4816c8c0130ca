// Files of sessions: fetched, opened in a worker, and cached sealed, up to a limit.

import { openFile } from "../crypto/blobs.js";
import { blobKey } from "../crypto/keys.js";
import { expect } from "../relay/errors.js";

// The relay's limit, less the nonce and the tag of a sealed file.
export const LARGEST = 10 * 1024 * 1024 - 40;
// Limit of the cache of sealed files; the least recently used goes first.
const KEPT = 256 * 1024 * 1024;
// A file of another type could be a page with scripts, so it is only ever saved.
const SHOWN = /^(image\/(png|jpeg|gif|webp|avif|bmp)|audio\/[\w.+-]+|video\/[\w.+-]+|text\/plain)$/;

export class Files {
  #store;
  #http;
  #here = new Map(); // files sent from this page, by envelope id

  constructor(store, http) {
    this.#store = store;
    this.#http = http;
  }

  /** Remembers a file that this page has sent, so that it need not be fetched. */
  have(id, blob) {
    this.#here.set(id, blob);
  }

  /** Caches sealed bytes that are at the relay. */
  async keep(ref, sealed) {
    const row = { ref, sealed, size: sealed.length, usedAt: Date.now() };
    await this.#store.put("files", row).then(() => this.#shorten(), () => {});
  }

  /** Returns the file of a row as a Blob. Raises AwayError, RefusedError, Error with a sentence. */
  async fetch(session, row, { onProgress, signal } = {}) {
    const here = this.#here.get(row.id);
    if (here) return here;
    const sealed = await this.#sealed(session, row, { onProgress, signal });
    const key = await session.rawKey();
    const plain = await openFile(await blobKey(key), sealed);
    if (plain === null) throw new Error("This file cannot be opened: it is damaged.");
    onProgress?.(1);
    return new Blob([plain], { type: kindOf(row.mimeType) });
  }

  async #sealed(session, row, { onProgress, signal }) {
    const kept = await this.#store.get("files", row.ref);
    if (kept) {
      this.#store.put("files", { ...kept, usedAt: Date.now() }).catch(() => {});
      return kept.sealed;
    }
    const where = `/v1/sessions/${session.id}/attachments/request-download`;
    const { downloadUrl } = await this.#http.post(where, { ref: row.ref }, { signal });
    expect(typeof downloadUrl === "string");
    const size = row.size + 40;
    const sealed = await this.#http.download(downloadUrl, { size, signal, onProgress });
    await this.keep(row.ref, sealed);
    return sealed;
  }

  async #shorten() {
    const rows = await this.#store.all("files");
    let total = rows.reduce((sum, { size }) => sum + size, 0);
    for (const { ref, size } of rows.sort((a, b) => a.usedAt - b.usedAt)) {
      if (total <= KEPT) return;
      await this.#store.delete("files", ref);
      total -= size;
    }
  }
}

export function kindOf(mimeType) {
  const kind = mimeType.toLowerCase();
  return SHOWN.test(kind) ? kind : "application/octet-stream";
}
