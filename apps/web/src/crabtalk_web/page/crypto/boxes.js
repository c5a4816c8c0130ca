// Boxes: values sealed for one reader, by any sender who knows that reader's public key. A bundle
// is the public half of a key made for this box alone, a nonce, and NaCl's box.

import { joined, random } from "./bytes.js";
import { exchangeKeys, KEY_SIZE, sharedSecret } from "./keys.js";
import { hsalsa, openSecretbox, sealSecretbox } from "./secretbox.js";

const NONCE = 24;
const OVERHEAD = KEY_SIZE + NONCE + 16;

/** @returns {Promise<Uint8Array|null>} null for an invalid public key. */
export async function sealBox(theirs, plain) {
  const once = await exchangeKeys(random(KEY_SIZE));
  const key = await boxKey(once.secret, theirs);
  if (key === null) return null;
  const nonce = random(NONCE);
  return joined(once.public, nonce, sealSecretbox(key, nonce, plain));
}

/** @returns {Promise<Uint8Array|null>} null if it is damaged or sealed for another key. */
export async function openBox(secret, bundle) {
  if (bundle.length < OVERHEAD) return null;
  const key = await boxKey(secret, bundle.subarray(0, KEY_SIZE));
  if (key === null) return null;
  const end = KEY_SIZE + NONCE;
  return openSecretbox(key, bundle.subarray(KEY_SIZE, end), bundle.subarray(end));
}

/** Opens the wrapped key of a session or machine. */
export async function unwrapKey(secret, wrapped) {
  if (wrapped === null || wrapped[0] !== 0) return null;
  const key = await openBox(secret, wrapped.subarray(1));
  return key !== null && key.length === KEY_SIZE ? key : null;
}

async function boxKey(secret, theirs) {
  const shared = await sharedSecret(secret, theirs);
  return shared === null ? null : hsalsa(shared, new Uint8Array(16));
}
