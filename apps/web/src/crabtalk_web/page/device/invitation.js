// Invites another device. The inviting device makes a seed and shows it as a link. A device that
// opens the link derives a key pair from it, asks the relay under the public half, and gets the
// master secret in a box that only this pair opens. The seed is in the fragment, which browsers do
// not send; it works once and for five minutes.

import { fromBase64url, fromUtf8, random, toBase64, toBase64url } from "../crypto/bytes.js";
import { derive, exchangeKeys, KEY_SIZE } from "../crypto/keys.js";
import { AwayError } from "../relay/errors.js";
import { openFor } from "./account.js";

const LIFETIME = 5 * 60 * 1000;
const LOOK_EVERY = 1000;
const ROUTE = "/v1/auth/account";

const pairOf = async (seed) => exchangeKeys(await derive(seed, "Crabtalk Invitation", "device"));

/**
 * Returns `{url, expiresAt, asked, letIn(), cancel()}`: `asked` resolves when a device asks to be
 * let in, and is rejected on timeout or cancellation.
 */
export async function invite(http, account) {
  const seed = random(KEY_SIZE);
  const pair = await pairOf(seed);
  const expiresAt = Date.now() + LIFETIME;
  const over = new AbortController();
  const asked = untilAsked(http, pair.public, expiresAt, over.signal);
  asked.catch(() => {}); // no caller has to await it
  return {
    url: `${location.origin}/join#${toBase64url(seed)}`,
    expiresAt,
    asked,
    cancel: () => over.abort(new Error("The invitation was withdrawn.")),
    async letIn() {
      over.signal.throwIfAborted();
      const response = await account.invitation(pair.public);
      await http.post(`${ROUTE}/response`, { publicKey: toBase64(pair.public), response });
      over.abort(new Error("The invitation was used."));
    },
  };
}

async function untilAsked(http, publicKey, expiresAt, signal) {
  const query = `publicKey=${encodeURIComponent(toBase64(publicKey))}`;
  for (;;) {
    if (Date.now() > expiresAt) throw new Error("The link is too old. Make another one.");
    const { status } = await http.get(`${ROUTE}/request/status?${query}`, { signal });
    if (status === "pending") return;
    if (status === "authorized") throw new Error("The link was used before. Make another one.");
    await pause(LOOK_EVERY, signal);
  }
}

/** Returns the seed of a link: 32 bytes. Raises Error with a sentence. */
export function seedOf(text) {
  const seed = fromBase64url(text.trim().replace(/^.*#/, ""));
  if (seed?.length === KEY_SIZE) return seed;
  throw new Error("This link is not whole. Copy all of it, or make another one.");
}

/** Returns `{secret, token}` of the account once another device approves. */
export async function join(http, seed, onStep = () => {}, { signal } = {}) {
  const pair = await pairOf(seed);
  const request = { publicKey: toBase64(pair.public), sealsToken: true };
  const until = Date.now() + LIFETIME;
  onStep("asking");
  let told = await http.post(`${ROUTE}/request`, request);
  onStep("waiting");
  while (told.state !== "authorized") {
    if (Date.now() > until) throw new Error("No device let this one in. Make another link.");
    await pause(LOOK_EVERY, signal);
    told = await http.post(`${ROUTE}/request`, request, { signal }).catch(orElse(told));
  }
  onStep("letting in");
  const secret = await openFor(pair.secret, told.response);
  const token = await openFor(pair.secret, told.sealedToken);
  if (secret?.length !== KEY_SIZE || !token) {
    throw new Error("The answer cannot be opened. Make another link on the other device.");
  }
  return { secret, token: fromUtf8(token) };
}

/** Tries again while the relay is unavailable. */
const orElse = (told) => (error) => {
  if (error instanceof AwayError) return told;
  throw error;
};

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}
