// Keys: a person's master secret, and everything derived from it.
//
// If the browser supports the curves, private keys are non-extractable CryptoKeys, so no script can
// read their bytes; otherwise they are plain bytes. Callers need not know which.

import { joined, toUtf8 } from "./bytes.js";
import * as nacl from "./nacl.js";

export const KEY_SIZE = 32;
// What precedes the 32 bytes of a private key in the form that browsers import (RFC 8410).
const PREFIX = {
  X25519: [48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 110, 4, 34, 4, 32],
  Ed25519: [48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32],
};
const BASE_POINT = Uint8Array.from({ length: KEY_SIZE }, (_, at) => (at ? 0 : 9));

async function hmac(key, data) {
  const algorithm = { name: "HMAC", hash: "SHA-512" };
  const imported = await crypto.subtle.importKey("raw", key, algorithm, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", imported, data));
}

const sha512 = async (data) => new Uint8Array(await crypto.subtle.digest("SHA-512", data));

/** Returns the key at the end of `path` in the tree of `seed` for `usage`. */
export async function derive(seed, usage, ...path) {
  let node = await hmac(toUtf8(`${usage} Master Seed`), seed);
  for (const word of path) {
    node = await hmac(node.subarray(KEY_SIZE), joined(new Uint8Array(1), toUtf8(word)));
  }
  return node.slice(0, KEY_SIZE);
}

/** Returns the key that seals the files of a session. */
export const blobKey = (sessionKey) => derive(sessionKey, "Happy Blobs", "session");

/** Returns the key pair for which data keys are wrapped: `{secret, public}`. */
export async function contentKeys(masterSecret) {
  const seed = await derive(masterSecret, "Happy EnCoder", "content");
  return exchangeKeys((await sha512(seed)).slice(0, KEY_SIZE));
}

/** Returns the X25519 pair of these 32 bytes. */
export async function exchangeKeys(bytes) {
  const secret = (await imported("X25519", bytes, ["deriveBits"])) ?? bytes;
  return { secret, public: await sharedSecret(secret, BASE_POINT) };
}

/**
 * Returns the shared secret of two pairs; `secret` is from `exchangeKeys`. Null for a point that no
 * honest key has.
 */
export async function sharedSecret(secret, theirs) {
  if (secret instanceof Uint8Array) return nacl.scalarMultiply(secret, theirs);
  try {
    const point = await crypto.subtle.importKey("raw", theirs, "X25519", true, []);
    const bits = { name: "X25519", public: point };
    return new Uint8Array(await crypto.subtle.deriveBits(bits, secret, 8 * KEY_SIZE));
  } catch {
    return null;
  }
}

/** Returns the signing pair of the account: `{secret, public}`. */
export async function signingKeys(masterSecret) {
  const secret = (await imported("Ed25519", masterSecret, ["sign"])) ?? masterSecret;
  return { secret, public: await nacl.signingKey(masterSecret) };
}

export async function sign(secret, message) {
  if (secret instanceof Uint8Array) return nacl.sign(secret, message);
  return new Uint8Array(await crypto.subtle.sign("Ed25519", secret, message));
}

/** Returns a non-extractable CryptoKey; null if the browser does not support it. */
async function imported(curve, bytes, usages) {
  try {
    const wrapped = joined(Uint8Array.from(PREFIX[curve]), bytes);
    return await crypto.subtle.importKey("pkcs8", wrapped, curve, false, usages);
  } catch {
    return null;
  }
}
