// The account on this device: the master secret, sealed under a non-extractable key of the browser.
// It is opened for the backup text and to link other devices; and, in browsers without the curves,
// to sign and to unwrap.

import { openBox, sealBox, unwrapKey } from "../crypto/boxes.js";
import { fromBase64, fromUtf8, joined, toBase64, toUtf8 } from "../crypto/bytes.js";
import { contentKeys, sign, signingKeys } from "../crypto/keys.js";
import { newKey, openBytes, sealBytes } from "../crypto/sealing.js";

const WHERE = "this";

export class Account {
  #store;
  #kept;
  #token = "";

  constructor(store, kept) {
    this.#store = store;
    this.#kept = kept;
  }

  /** Returns the stored account, or null. */
  static async kept(store) {
    const kept = await store.get("account", WHERE);
    if (!kept) return null;
    const account = new Account(store, kept);
    account.#token = await account.#opened(kept.token, fromUtf8);
    return account;
  }

  /** Returns an account that is not stored yet; `keep` stores it. */
  static async of(store, secret) {
    const [deviceKey, content, signing] = await Promise.all([
      newKey(),
      contentKeys(secret),
      signingKeys(secret),
    ]);
    return new Account(store, {
      deviceKey,
      secret: await sealBytes(deviceKey, secret),
      contentKey: await closed(deviceKey, content.secret),
      contentPublic: content.public,
      signingKey: signing.secret instanceof Uint8Array ? null : signing.secret,
      signingPublic: signing.public,
      token: null,
    });
  }

  get token() {
    return this.#token;
  }

  /** Stores the account with its token, so that it survives a reload. */
  async keep(token) {
    this.#token = token;
    this.#kept.token = await sealBytes(this.#kept.deviceKey, toUtf8(token));
    await this.#store.put("account", this.#kept, WHERE);
  }

  /** Signs a relay's nonce, which proves ownership of the account. */
  async login(nonce) {
    const challenge = fromBase64(nonce) ?? toUtf8(nonce);
    const secret = this.#kept.signingKey ?? (await this.masterSecret());
    return {
      publicKey: toBase64(this.#kept.signingPublic),
      challenge: toBase64(challenge),
      signature: toBase64(await sign(secret, challenge)),
    };
  }

  masterSecret() {
    return this.#opened(this.#kept.secret, (bytes) => bytes);
  }

  /** Returns the bytes of a record's key; null if it is for another account. */
  async recordKey(wrapped) {
    if (typeof wrapped !== "string") return null;
    return unwrapKey(await this.#contentSecret(), fromBase64(wrapped));
  }

  /** Returns the answer to a machine that asks to be let in. It does not get the secret. */
  async approval(machineKey) {
    const bundle = await sealBox(machineKey, joined(new Uint8Array(1), this.#kept.contentPublic));
    if (bundle === null) throw new Error("This is not a machine's key. Open its link again.");
    return toBase64(bundle);
  }

  /** Returns the answer to another device of the same person, which gets the master secret. */
  async invitation(deviceKey) {
    return toBase64(await sealBox(deviceKey, await this.masterSecret()));
  }

  async #contentSecret() {
    const kept = this.#kept.contentKey;
    return kept instanceof Uint8Array ? openBytes(this.#kept.deviceKey, kept) : kept;
  }

  async #opened(sealed, read) {
    const bytes = sealed && (await openBytes(this.#kept.deviceKey, sealed));
    if (!bytes) throw new Error("This browser lost its key. Log out, and use your backup words.");
    return read(bytes);
  }
}

/** Opens a box that was sealed for this account's key pair. */
export const openFor = async (secret, text) => {
  const bundle = typeof text === "string" ? fromBase64(text) : null;
  return bundle === null ? null : openBox(secret, bundle);
};

const closed = (deviceKey, secret) =>
  secret instanceof Uint8Array ? sealBytes(deviceKey, secret) : secret;
