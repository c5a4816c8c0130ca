// The chain: what this device adds to its messages, inside the seal, so that a gateway can detect a
// replay, a gap and a changed order. The chain's state is stored together with the sealed messages
// before they are sent, so a message that is sent again is identical.

import { fromBase64, random, toBase64, toBase64url } from "../crypto/bytes.js";
import { seal } from "../crypto/sealing.js";
import { result } from "./store.js";

const KEY = "crabtalkChain";
const ID_SIZE = 16;
const DEVICE = "device";
const keyOf = (session) => `chain ${session}`;

export class Chains {
  #store;
  #device = null;

  constructor(store) {
    this.#store = store;
  }

  /**
   * Links each body to the one before it and seals it: `{messages, state}`. Nothing is stored yet.
   * Only one tab may do this at a time.
   */
  async extend(session, bodies) {
    const kept = await this.#store.get("account", keyOf(session.id));
    let { chain, counter, previous } = kept ?? { chain: newId(), counter: 0, previous: "" };
    const device = await this.#deviceId();
    const messages = [];
    for (const body of bodies) {
      counter += 1;
      const link = { device, chain, session: session.id, counter };
      if (previous) link.previous = previous;
      const content = await seal(session.key, { ...body, [KEY]: link });
      previous = await hashOf(content);
      messages.push(content);
    }
    return { messages, state: { chain, counter, previous } };
  }

  /**
   * Stores the state and the outbox item with its messages, both or neither. False if the item is
   * gone.
   */
  async keep(session, state, item) {
    let isThere = false;
    await this.#store.change(["account", "outbox"], async (tables) => {
      isThere = (await result(tables.outbox.get(item.localId))) !== undefined;
      if (!isThere) return;
      tables.outbox.put(item);
      tables.account.put(state, keyOf(session.id));
    }, "strict");
    return isThere;
  }

  /** The next message starts a new chain. With `chain`, only if that is the current one. */
  async restart(session, chain = "") {
    await this.#store.change(["account"], async ({ account }) => {
      const kept = await result(account.get(keyOf(session)));
      if (kept && (!chain || kept.chain === chain)) account.delete(keyOf(session));
    }, "strict");
  }

  async #deviceId() {
    this.#device ??= await this.#store.get("account", DEVICE);
    if (!this.#device) {
      this.#device = newId();
      await this.#store.put("account", this.#device, DEVICE);
    }
    return this.#device;
  }
}

const newId = () => toBase64url(random(ID_SIZE));

async function hashOf(content) {
  return toBase64(new Uint8Array(await crypto.subtle.digest("SHA-256", fromBase64(content))));
}
