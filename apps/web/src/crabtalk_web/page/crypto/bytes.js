// Bytes and their text encodings: base64 on the wire, base64url in links. Any other input gives
// null.

const encoder = new TextEncoder();
const decoder = new TextDecoder();
// The number of arguments that every browser accepts in one call.
const AT_ONCE = 8192;

export function joined(...parts) {
  const all = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export const random = (size) => crypto.getRandomValues(new Uint8Array(size));
export const toUtf8 = (text) => encoder.encode(text);
export const fromUtf8 = (bytes) => decoder.decode(bytes);

export function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += AT_ONCE) {
    text += String.fromCharCode(...bytes.subarray(at, at + AT_ONCE));
  }
  return btoa(text);
}

/** @returns {Uint8Array|null} */
export function fromBase64(text) {
  try {
    const letters = atob(text);
    const bytes = new Uint8Array(letters.length);
    for (let at = 0; at < letters.length; at += 1) bytes[at] = letters.charCodeAt(at);
    return bytes;
  } catch {
    return null;
  }
}

export function toBase64url(bytes) {
  return toBase64(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** @returns {Uint8Array|null} */
export function fromBase64url(text) {
  if (!/^[\w-]*$/.test(text)) return null;
  return fromBase64(text.replaceAll("-", "+").replaceAll("_", "/"));
}

export function isEqual(a, b) {
  if (a.length !== b.length) return false;
  let differs = 0;
  for (let at = 0; at < a.length; at += 1) differs |= a[at] ^ b[at];
  return differs === 0;
}
