// An account: one secret, and the keys and texts that are made of it.

import { joined, openBox, publicKey, sealBox, sign, signingKey } from "./nacl.js";

const encoder = new TextEncoder();
const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

export const toBase64 = (bytes) => btoa(String.fromCharCode(...bytes));
export const fromBase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
export const fromBase64url = (text) => fromBase64(text.replace(/-/g, "+").replace(/_/g, "/"));

async function hmac(key, data) {
  const algorithm = { name: "HMAC", hash: "SHA-512" };
  const imported = await crypto.subtle.importKey("raw", key, algorithm, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", imported, data));
}

export async function derive(seed, usage, ...path) {
  let node = await hmac(encoder.encode(`${usage} Master Seed`), seed);
  for (const word of path) {
    node = await hmac(node.subarray(32), joined(new Uint8Array(1), encoder.encode(word)));
  }
  return node.subarray(0, 32);
}

export class Account {
  constructor(secret) {
    this.secret = secret;
  }

  async contentKeys() {
    const seed = await derive(this.secret, "Happy EnCoder", "content");
    const hashed = new Uint8Array(await crypto.subtle.digest("SHA-512", seed));
    const secret = hashed.slice(0, 32);
    return { secret, public: publicKey(secret) };
  }

  // What shows a relay whose account this is: `nonce` signed.
  async login(nonce) {
    return {
      publicKey: toBase64(await signingKey(this.secret)),
      challenge: toBase64(nonce),
      signature: toBase64(await sign(this.secret, nonce)),
    };
  }

  // The answer to a machine that asks to be let in. It gets no secret.
  async approval(machine) {
    const keys = await this.contentKeys();
    return toBase64(sealBox(machine, joined(new Uint8Array(1), keys.public)));
  }

  // The key of a session; null for one that is not for us.
  async sessionKey(wrapped) {
    const bytes = fromBase64(wrapped);
    if (bytes[0] !== 0) return null;
    return openBox((await this.contentKeys()).secret, bytes.subarray(1));
  }
}

// What cannot be opened is null.
export async function opened(key, text) {
  const bytes = fromBase64(text);
  if (bytes[0] !== 0 || bytes.length < 29) return null;
  try {
    const imported = await crypto.subtle.importKey("raw", key, "AES-GCM", false, ["decrypt"]);
    const algorithm = { name: "AES-GCM", iv: bytes.subarray(1, 13) };
    const plain = await crypto.subtle.decrypt(algorithm, imported, bytes.subarray(13));
    return JSON.parse(new TextDecoder().decode(plain));
  } catch {
    return null;
  }
}

export function toWords(secret) {
  let bits = "";
  for (const byte of secret) bits += byte.toString(2).padStart(8, "0");
  const letters = bits.match(/.{1,5}/g).map((five) => ALPHABET[parseInt(five.padEnd(5, "0"), 2)]);
  return letters.join("").match(/.{1,5}/g).join("-");
}

// Null for what cannot be a secret.
export function fromWords(text) {
  const looks = { 0: "O", 1: "I", 8: "B", 9: "G" };
  const letters = [...text.toUpperCase()].map((c) => looks[c] ?? c).filter((c) => ALPHABET.includes(c));
  const bits = letters.map((c) => ALPHABET.indexOf(c).toString(2).padStart(5, "0")).join("");
  const whole = bits.match(/.{8}/g) ?? [];
  return whole.length === 32 ? Uint8Array.from(whole, (byte) => parseInt(byte, 2)) : null;
}
