// Sealing: values of one record, under its key: 00, a nonce, AES-256-GCM. Keys are the browser's,
// and give their bytes to nobody.

import { fromBase64, fromUtf8, joined, random, toBase64, toUtf8 } from "./bytes.js";

const NONCE = 12;
const LEAST = 1 + NONCE + 16;
// What a value is for, said inside the seal: a relay of ill will cannot show one call as another.
const BOUND = "crabtalkBound";

export function importKey(bytes) {
  return crypto.subtle.importKey("raw", bytes, "AES-GCM", false, ["encrypt", "decrypt"]);
}

/** A key that never was anything but the browser's own. */
export function newKey() {
  const algorithm = { name: "AES-GCM", length: 256 };
  return crypto.subtle.generateKey(algorithm, false, ["encrypt", "decrypt"]);
}

export async function sealBytes(key, plain) {
  const iv = random(NONCE);
  const sealed = await crypto.subtle.encrypt({ name: "AES-GCM", iv }, key, plain);
  return joined(new Uint8Array(1), iv, new Uint8Array(sealed));
}

/** @returns {Promise<Uint8Array|null>} null for what cannot be opened. */
export async function openBytes(key, data) {
  if (data === null || data.length < LEAST || data[0] !== 0) return null;
  const algorithm = { name: "AES-GCM", iv: data.subarray(1, 1 + NONCE) };
  try {
    return new Uint8Array(await crypto.subtle.decrypt(algorithm, key, data.subarray(1 + NONCE)));
  } catch {
    return null;
  }
}

/** A value of JSON, as the text that travels. */
export async function seal(key, value) {
  return toBase64(await sealBytes(key, toUtf8(JSON.stringify(value))));
}

/** The value; null for what cannot be opened, is no JSON, or says nothing at all. */
export async function open(key, text) {
  const plain = typeof text === "string" ? await openBytes(key, fromBase64(text)) : null;
  if (plain === null || !plain.length) return null;
  try {
    return JSON.parse(fromUtf8(plain));
  } catch {
    return null;
  }
}

/** The parameters of a call, which say which call of which session they are for. */
export function bind(value, purpose, record, counter) {
  return { ...value, [BOUND]: [purpose, record, counter] };
}
