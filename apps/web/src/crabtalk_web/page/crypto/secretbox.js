// NaCl's secretbox, XSalsa20 and Poly1305, which no browser has built in. The number formats are
// chosen for speed, because files of ten megabytes go through it.

import { isEqual } from "./bytes.js";

const TAG = 16;
const NONCE = 24;
// The first 32 bytes of the stream are the key of the tag; the message follows.
const AHEAD = 32;
const SIGMA = [0x61707865, 0x3320646e, 0x79622d32, 0x6b206574];

/** Returns the tag, then the sealed bytes. */
export function sealSecretbox(key, nonce, plain) {
  const work = worked(key, nonce, plain);
  const sealed = work.subarray(AHEAD, AHEAD + plain.length);
  const boxed = new Uint8Array(TAG + plain.length);
  boxed.set(poly1305(work.subarray(0, AHEAD), sealed));
  boxed.set(sealed, TAG);
  return boxed;
}

/** @returns {Uint8Array|null} null if it cannot be opened. */
export function openSecretbox(key, nonce, boxed) {
  if (boxed.length < TAG) return null;
  const sealed = boxed.subarray(TAG);
  const work = worked(key, nonce, sealed);
  const tag = poly1305(work.subarray(0, AHEAD), sealed);
  if (!isEqual(tag, boxed.subarray(0, TAG))) return null;
  return work.subarray(AHEAD, AHEAD + sealed.length);
}

/** Returns a fresh nonce, then the box: the format of files. */
export function sealBlob(key, plain) {
  const nonce = crypto.getRandomValues(new Uint8Array(NONCE));
  const boxed = sealSecretbox(key, nonce, plain);
  const all = new Uint8Array(NONCE + boxed.length);
  all.set(nonce);
  all.set(boxed, NONCE);
  return all;
}

/** @returns {Uint8Array|null} */
export function openBlob(key, data) {
  if (data.length < NONCE + TAG) return null;
  return openSecretbox(key, data.subarray(0, NONCE), data.subarray(NONCE));
}

// ── XSalsa20 ───────────────────────────────────────────────────────────────────────────────────

/** Returns 32 bytes of the stream, then `data` XORed with the stream. */
function worked(key, nonce, data) {
  const inner = words(hsalsa(key, nonce.subarray(0, 16)));
  const [n0, n1] = words(nonce.subarray(16, NONCE));
  const blocks = Math.ceil((AHEAD + data.length) / 64);
  const work = new Uint32Array(16 * blocks);
  const bytes = new Uint8Array(work.buffer);
  bytes.set(data, AHEAD);
  const [k0, k1, k2, k3, k4, k5, k6, k7] = inner;
  const start = Uint32Array.of(
    SIGMA[0], k0, k1, k2, k3, SIGMA[1], n0, n1, 0, 0, SIGMA[2], k4, k5, k6, k7, SIGMA[3],
  );
  const mixed = new Uint32Array(16);
  for (let block = 0, at = 0; block < blocks; block += 1, at += 16) {
    start[8] = block; // the second word of the counter is needed only after 256 gigabytes
    mix(mixed, start);
    for (let word = 0; word < 16; word += 1) work[at + word] ^= (mixed[word] + start[word]) | 0;
  }
  return bytes;
}

/** Turns a shared secret, or the first part of a nonce, into a key of 32 bytes. */
export function hsalsa(key, input) {
  const [k, n] = [words(key), words(input)];
  const start = Uint32Array.of(
    SIGMA[0], k[0], k[1], k[2], k[3], SIGMA[1], n[0], n[1],
    n[2], n[3], SIGMA[2], k[4], k[5], k[6], k[7], SIGMA[3],
  );
  const x = mix(new Uint32Array(16), start);
  const out = Uint32Array.of(x[0], x[5], x[10], x[15], x[6], x[7], x[8], x[9]);
  return new Uint8Array(out.buffer);
}

/**
 * Reads the bytes as little-endian words, which is the order of every machine that runs a browser.
 */
function words(bytes) {
  return new Uint32Array(bytes.slice().buffer);
}

/** Twenty rounds over `input`, into `out`. Unrolled, because loops over a table take far longer. */
function mix(out, input) {
  let [x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15] = [
    input[0] | 0, input[1] | 0, input[2] | 0, input[3] | 0,
    input[4] | 0, input[5] | 0, input[6] | 0, input[7] | 0,
    input[8] | 0, input[9] | 0, input[10] | 0, input[11] | 0,
    input[12] | 0, input[13] | 0, input[14] | 0, input[15] | 0,
  ];
  let sum = 0;
  for (let round = 0; round < 10; round += 1) {
    sum = (x0 + x12) | 0; x4 ^= (sum << 7) | (sum >>> 25);
    sum = (x4 + x0) | 0; x8 ^= (sum << 9) | (sum >>> 23);
    sum = (x8 + x4) | 0; x12 ^= (sum << 13) | (sum >>> 19);
    sum = (x12 + x8) | 0; x0 ^= (sum << 18) | (sum >>> 14);
    sum = (x5 + x1) | 0; x9 ^= (sum << 7) | (sum >>> 25);
    sum = (x9 + x5) | 0; x13 ^= (sum << 9) | (sum >>> 23);
    sum = (x13 + x9) | 0; x1 ^= (sum << 13) | (sum >>> 19);
    sum = (x1 + x13) | 0; x5 ^= (sum << 18) | (sum >>> 14);
    sum = (x10 + x6) | 0; x14 ^= (sum << 7) | (sum >>> 25);
    sum = (x14 + x10) | 0; x2 ^= (sum << 9) | (sum >>> 23);
    sum = (x2 + x14) | 0; x6 ^= (sum << 13) | (sum >>> 19);
    sum = (x6 + x2) | 0; x10 ^= (sum << 18) | (sum >>> 14);
    sum = (x15 + x11) | 0; x3 ^= (sum << 7) | (sum >>> 25);
    sum = (x3 + x15) | 0; x7 ^= (sum << 9) | (sum >>> 23);
    sum = (x7 + x3) | 0; x11 ^= (sum << 13) | (sum >>> 19);
    sum = (x11 + x7) | 0; x15 ^= (sum << 18) | (sum >>> 14);
    sum = (x0 + x3) | 0; x1 ^= (sum << 7) | (sum >>> 25);
    sum = (x1 + x0) | 0; x2 ^= (sum << 9) | (sum >>> 23);
    sum = (x2 + x1) | 0; x3 ^= (sum << 13) | (sum >>> 19);
    sum = (x3 + x2) | 0; x0 ^= (sum << 18) | (sum >>> 14);
    sum = (x5 + x4) | 0; x6 ^= (sum << 7) | (sum >>> 25);
    sum = (x6 + x5) | 0; x7 ^= (sum << 9) | (sum >>> 23);
    sum = (x7 + x6) | 0; x4 ^= (sum << 13) | (sum >>> 19);
    sum = (x4 + x7) | 0; x5 ^= (sum << 18) | (sum >>> 14);
    sum = (x10 + x9) | 0; x11 ^= (sum << 7) | (sum >>> 25);
    sum = (x11 + x10) | 0; x8 ^= (sum << 9) | (sum >>> 23);
    sum = (x8 + x11) | 0; x9 ^= (sum << 13) | (sum >>> 19);
    sum = (x9 + x8) | 0; x10 ^= (sum << 18) | (sum >>> 14);
    sum = (x15 + x14) | 0; x12 ^= (sum << 7) | (sum >>> 25);
    sum = (x12 + x15) | 0; x13 ^= (sum << 9) | (sum >>> 23);
    sum = (x13 + x12) | 0; x14 ^= (sum << 13) | (sum >>> 19);
    sum = (x14 + x13) | 0; x15 ^= (sum << 18) | (sum >>> 14);
  }
  out[0] = x0; out[1] = x1; out[2] = x2; out[3] = x3;
  out[4] = x4; out[5] = x5; out[6] = x6; out[7] = x7;
  out[8] = x8; out[9] = x9; out[10] = x10; out[11] = x11;
  out[12] = x12; out[13] = x13; out[14] = x14; out[15] = x15;
  return out;
}

// ── Poly1305 ───────────────────────────────────────────────────────────────────────────────────

// A number of 132 bits is six parts of 22 bits: sums of six products stay below 2^53, where
// JavaScript is exact.
const PART = 2 ** 22;
const LOW = PART - 1;
// 2^130 is 5 in this field, so the carry out of the top part is added back times 20.
const FOLD = 20;

function poly1305(key, data) {
  const r = words(key.subarray(0, 16));
  const [r0, r1, r2, r3, r4, r5] = parts(
    r[0] & 0x0fffffff, r[1] & 0x0ffffffc, r[2] & 0x0ffffffc, r[3] & 0x0ffffffc, 0,
  );
  const [f1, f2, f3, f4, f5] = [r1 * FOLD, r2 * FOLD, r3 * FOLD, r4 * FOLD, r5 * FOLD];
  const whole = data.length - (data.length % 16);
  const padded = new Uint8Array(whole + (whole < data.length ? 16 : 0));
  padded.set(data);
  if (whole < data.length) padded[data.length] = 1;
  const numbers = new Uint32Array(padded.buffer);
  let [h0, h1, h2, h3, h4, h5] = [0, 0, 0, 0, 0, 0];
  for (let at = 0; at < numbers.length; at += 4) {
    const [w0, w1, w2, w3] = [numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]];
    h0 += w0 & LOW;
    h1 += ((w0 >>> 22) | (w1 << 10)) & LOW;
    h2 += ((w1 >>> 12) | (w2 << 20)) & LOW;
    h3 += (w2 >>> 2) & LOW;
    h4 += ((w2 >>> 24) | (w3 << 8)) & LOW;
    h5 += (w3 >>> 14) | (4 * at < whole ? 1 << 18 : 0);
    const d0 = h0 * r0 + h1 * f5 + h2 * f4 + h3 * f3 + h4 * f2 + h5 * f1;
    let d1 = h0 * r1 + h1 * r0 + h2 * f5 + h3 * f4 + h4 * f3 + h5 * f2;
    let d2 = h0 * r2 + h1 * r1 + h2 * r0 + h3 * f5 + h4 * f4 + h5 * f3;
    let d3 = h0 * r3 + h1 * r2 + h2 * r1 + h3 * r0 + h4 * f5 + h5 * f4;
    let d4 = h0 * r4 + h1 * r3 + h2 * r2 + h3 * r1 + h4 * r0 + h5 * f5;
    let d5 = h0 * r5 + h1 * r4 + h2 * r3 + h3 * r2 + h4 * r1 + h5 * r0;
    let carry = Math.floor(d0 / PART);
    h0 = d0 - carry * PART;
    d1 += carry; carry = Math.floor(d1 / PART); h1 = d1 - carry * PART;
    d2 += carry; carry = Math.floor(d2 / PART); h2 = d2 - carry * PART;
    d3 += carry; carry = Math.floor(d3 / PART); h3 = d3 - carry * PART;
    d4 += carry; carry = Math.floor(d4 / PART); h4 = d4 - carry * PART;
    d5 += carry; carry = Math.floor(d5 / PART); h5 = d5 - carry * PART;
    h0 += carry * FOLD; carry = Math.floor(h0 / PART); h0 -= carry * PART;
    h1 += carry;
  }
  return tagOf([h0, h1, h2, h3, h4, h5], key.subarray(16, 32));
}

function parts(w0, w1, w2, w3, top) {
  return [
    w0 & LOW,
    ((w0 >>> 22) | (w1 << 10)) & LOW,
    ((w1 >>> 12) | (w2 << 20)) & LOW,
    (w2 >>> 2) & LOW,
    ((w2 >>> 24) | (w3 << 8)) & LOW,
    (w3 >>> 14) | (top << 18),
  ];
}

/** Called once for each message, so BigInt is fast enough. */
function tagOf(sum, pad) {
  const whole = sum.reduceRight((all, part) => (all << 22n) + BigInt(part), 0n);
  const added = pad.reduceRight((all, byte) => (all << 8n) | BigInt(byte), 0n);
  const tag = (whole % (2n ** 130n - 5n)) + added;
  return Uint8Array.from({ length: TAG }, (_, at) => Number((tag >> BigInt(8 * at)) & 255n));
}
