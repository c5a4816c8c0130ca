// The layouts as a browser makes and opens them, with WebCrypto only. Reads one JSON object {do:
// name, ...} a line and answers one a line; bytes are base64.
import { createInterface } from "node:readline";
import { webcrypto } from "node:crypto";

const { subtle } = webcrypto;
const bytes = (text) => new Uint8Array(Buffer.from(text, "base64"));
const text = (data) => Buffer.from(data).toString("base64");
const utf8 = new TextEncoder();
const join = (...parts) => new Uint8Array(Buffer.concat(parts.map((part) => Buffer.from(part))));

async function hmac(key, message) {
  const algorithm = { name: "HMAC", hash: "SHA-512" };
  const made = await subtle.importKey("raw", key, algorithm, false, ["sign"]);
  return new Uint8Array(await subtle.sign("HMAC", made, message));
}

// RFC 8410: what precedes the 32 bytes of a private key.
const pkcs8 = (last, key) => join(Buffer.from("302e020100300506032b65" + last + "04220420", "hex"), key);

const verbs = {
  async seal({ key, value }) {
    const made = await subtle.importKey("raw", bytes(key), "AES-GCM", false, ["encrypt"]);
    const nonce = webcrypto.getRandomValues(new Uint8Array(12));
    const plain = value === undefined ? new Uint8Array() : utf8.encode(JSON.stringify(value));
    const sealed = await subtle.encrypt({ name: "AES-GCM", iv: nonce }, made, plain);
    return text(join([0], nonce, new Uint8Array(sealed)));
  },
  async open({ key, sealed }) {
    const data = bytes(sealed);
    const made = await subtle.importKey("raw", bytes(key), "AES-GCM", false, ["decrypt"]);
    const iv = data.slice(1, 13);
    const plain = await subtle.decrypt({ name: "AES-GCM", iv }, made, data.slice(13));
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(plain));
  },
  async derive({ seed, usage, path }) {
    let node = await hmac(utf8.encode(usage + " Master Seed"), bytes(seed));
    for (const word of path) {
      node = await hmac(node.slice(32), join([0], utf8.encode(word)));
    }
    return text(node.slice(0, 32));
  },
  async content({ secret }) {
    const seed = bytes(await verbs.derive({ seed: secret, usage: "Happy EnCoder", path: ["content"] }));
    const hash = new Uint8Array(await subtle.digest("SHA-512", seed)).slice(0, 32);
    return verbs.agree({ secret: text(hash), publicKey: text([9, ...new Array(31).fill(0)]) });
  },
  async agree({ secret, publicKey }) {
    const own = pkcs8("6e", bytes(secret));
    const key = await subtle.importKey("pkcs8", own, { name: "X25519" }, false, ["deriveBits"]);
    const other = await subtle.importKey("raw", bytes(publicKey), { name: "X25519" }, false, []);
    return text(await subtle.deriveBits({ name: "X25519", public: other }, key, 256));
  },
  async verify({ publicKey, signature, message }) {
    const key = await subtle.importKey("raw", bytes(publicKey), { name: "Ed25519" }, false, ["verify"]);
    return subtle.verify({ name: "Ed25519" }, key, bytes(signature), bytes(message));
  },
  async sign({ secret, message }) {
    const own = pkcs8("70", bytes(secret));
    const key = await subtle.importKey("pkcs8", own, { name: "Ed25519" }, false, ["sign"]);
    return text(await subtle.sign({ name: "Ed25519" }, key, bytes(message)));
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, ...given } = JSON.parse(line);
  try {
    console.log(JSON.stringify({ answer: (await verbs[name](given)) ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
