// Bringing another device in. The device that invites makes a seed, and shows it as a link;
// whoever opens the link derives the same pair of keys of it, asks the relay under the public
// half, and gets the master secret in a box that only this pair opens. The seed stands where
// browsers do not send it, serves once, and for five minutes.

import { fromBase64url, fromUtf8, random, toBase64, toBase64url } from "../crypto/bytes.js";
import { derive, exchangeKeys, KEY_SIZE } from "../crypto/keys.js";
import { AwayError } from "../relay/errors.js";
import { openFor } from "./account.js";

const LIFETIME = 5 * 60 * 1000;
const LOOK_EVERY = 1000;
const ROUTE = "/v1/auth/account";

const pairOf = async (seed) => exchangeKeys(await derive(seed, "Crabtalk Invitation", "device"));

/** `{url, expiresAt, asked, letIn(), cancel()}`: `asked` resolves when a device asks to be let in,
 * and is rejected when the time is over or somebody cancels. */
export async function invite(http, account) {
  const seed = random(KEY_SIZE);
  const pair = await pairOf(seed);
  const expiresAt = Date.now() + LIFETIME;
  const over = new AbortController();
  const asked = untilAsked(http, pair.public, expiresAt, over.signal);
  asked.catch(() => {}); // nobody has to wait for it
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

/** What was in the link: 32 bytes. Raises Error with a sentence. */
export function seedOf(text) {
  const seed = fromBase64url(text.trim().replace(/^.*#/, ""));
  if (seed?.length === KEY_SIZE) return seed;
  throw new Error("This link is not whole. Copy all of it, or make another one.");
}

/** `{secret, token}` of the account, once somebody lets us in. */
export async function join(http, seed, onStep = () => {}, { signal } = {}) {
  const pair = await pairOf(seed);
  const request = { publicKey: toBase64(pair.public), sealsToken: true };
  const until = Date.now() + LIFETIME;
  onStep("asking");
  let told = await http.post(`${ROUTE}/request`, request);
  onStep("waiting");
  while (told.state !== "authorized") {
    if (Date.now() > until) throw new Error("Nobody let this device in. Make another link.");
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

/** A relay that is away for a moment is asked again. */
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
