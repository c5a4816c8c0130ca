// Seals the values of one record under its key: 00, a nonce, AES-256-GCM. The keys are
// non-extractable CryptoKeys.

import { fromBase64, fromUtf8, joined, random, toBase64, toUtf8 } from "./bytes.js";

const NONCE = 12;
const LEAST = 1 + NONCE + 16;
// The purpose of a value, inside the seal, so that a malicious relay cannot pass off one call as
// another.
const BOUND = "crabtalkBound";

export function importKey(bytes) {
  return crypto.subtle.importKey("raw", bytes, "AES-GCM", false, ["encrypt", "decrypt"]);
}

/** Generates a key that was never extractable. */
export function newKey() {
  const algorithm = { name: "AES-GCM", length: 256 };
  return crypto.subtle.generateKey(algorithm, false, ["encrypt", "decrypt"]);
}

export async function sealBytes(key, plain) {
  const iv = random(NONCE);
  const sealed = await crypto.subtle.encrypt({ name: "AES-GCM", iv }, key, plain);
  return joined(new Uint8Array(1), iv, new Uint8Array(sealed));
}

/** @returns {Promise<Uint8Array|null>} null if it cannot be opened. */
export async function openBytes(key, data) {
  if (data === null || data.length < LEAST || data[0] !== 0) return null;
  const algorithm = { name: "AES-GCM", iv: data.subarray(1, 1 + NONCE) };
  try {
    return new Uint8Array(await crypto.subtle.decrypt(algorithm, key, data.subarray(1 + NONCE)));
  } catch {
    return null;
  }
}

/** Seals a JSON value as base64. */
export async function seal(key, value) {
  return toBase64(await sealBytes(key, toUtf8(JSON.stringify(value))));
}

/** Returns the value; null if it cannot be opened, is not JSON, or is empty. */
export async function open(key, text) {
  const plain = typeof text === "string" ? await openBytes(key, fromBase64(text)) : null;
  if (plain === null || !plain.length) return null;
  try {
    return JSON.parse(fromUtf8(plain));
  } catch {
    return null;
  }
}

/** Adds to the parameters of a call which call of which session they are for. */
export function bind(value, purpose, record, counter) {
  return { ...value, [BOUND]: [purpose, record, counter] };
}
