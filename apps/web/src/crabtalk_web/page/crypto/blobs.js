// Seals and opens files in a worker. Buffers are transferred, not copied, so the caller's bytes are
// gone afterwards.

import { scriptAddress } from "../trusted.js";

let worker = null;
let count = 0;
const waiting = new Map();

/**
 * @param {Uint8Array} key
 * @param {Uint8Array} bytes
 * @returns {Promise<Uint8Array>}
 */
export const sealFile = (key, bytes) => ask("seal", key, bytes);

/** @returns {Promise<Uint8Array|null>} null if it cannot be opened. */
export const openFile = (key, bytes) => ask("open", key, bytes);

function ask(verb, key, bytes) {
  worker ??= hired();
  count += 1;
  const number = count;
  return new Promise((resolve, reject) => {
    waiting.set(number, { resolve, reject });
    worker.postMessage({ number, verb, key, bytes }, [bytes.buffer]);
  });
}

function hired() {
  const made = new Worker(scriptAddress("/crypto/blob_worker.js"), { type: "module" });
  made.onmessage = ({ data: { number, done } }) => {
    waiting.get(number)?.resolve(done);
    waiting.delete(number);
  };
  made.onerror = () => {
    for (const { reject } of waiting.values()) {
      reject(new Error("The browser could not start what seals files. Reload the page."));
    }
    waiting.clear();
    worker = null;
  };
  return made;
}
