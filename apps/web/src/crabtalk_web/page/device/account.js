// The account, as this device keeps it: the master secret sealed under a key of the browser's own.
// It is opened for backup words and for other devices of the person; and in browsers that have no
// curves, to sign and to unwrap.

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

  /** The one that is kept here, or null. */
  static async kept(store) {
    const kept = await store.get("account", WHERE);
    if (!kept) return null;
    const account = new Account(store, kept);
    account.#token = await account.#opened(kept.token, fromUtf8);
    return account;
  }

  /** One that is not kept yet: `keep` does that. */
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

  /** From now on this device is logged in with `token`, also after a reload. */
  async keep(token) {
    this.#token = token;
    this.#kept.token = await sealBytes(this.#kept.deviceKey, toUtf8(token));
    await this.#store.put("account", this.#kept, WHERE);
  }

  /** What shows a relay whose account this is: its nonce, signed. */
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

  /** The bytes of a record's key; null for one that is not for us. */
  async recordKey(wrapped) {
    if (typeof wrapped !== "string") return null;
    return unwrapKey(await this.#contentSecret(), fromBase64(wrapped));
  }

  /** The answer to a machine that asks to be let in. It gets no secret. */
  async approval(machineKey) {
    const bundle = await sealBox(machineKey, joined(new Uint8Array(1), this.#kept.contentPublic));
    if (bundle === null) throw new Error("This is not a machine's key. Open its link again.");
    return toBase64(bundle);
  }

  /** The answer to another device of the same person, which is to know everything. */
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

/** What was sealed for the pair that this secret is of. */
export const openFor = async (secret, text) => {
  const bundle = typeof text === "string" ? fromBase64(text) : null;
  return bundle === null ? null : openBox(secret, bundle);
};

const closed = (deviceKey, secret) =>
  secret instanceof Uint8Array ? sealBytes(deviceKey, secret) : secret;
