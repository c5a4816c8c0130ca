// The codewords of a QR code: length, bytes, padding and error correction, at level M, up to
// version 20.

// By version from 1 on: error correction codewords in a block, and number of blocks, at level M.
const CORRECTION = [10, 16, 26, 18, 24, 16, 18, 22, 22, 26, 30, 22, 22, 24, 24, 28, 28, 26, 26, 26];
const BLOCKS = [1, 1, 1, 2, 2, 4, 4, 4, 5, 5, 5, 8, 9, 9, 10, 10, 11, 13, 14, 16];

/** Returns the number of codewords of a version. */
function capacity(version) {
  let modules = (16 * version + 128) * version + 64;
  if (version >= 2) {
    const marks = Math.floor(version / 7) + 2;
    modules -= (25 * marks - 10) * marks - 55;
    if (version >= 7) modules -= 36;
  }
  return Math.floor(modules / 8);
}

const dataWords = (version) => capacity(version) - CORRECTION[version - 1] * BLOCKS[version - 1];

/** Returns the smallest version with room for so many bytes. */
export function versionFor(length) {
  for (let version = 1; version <= CORRECTION.length; version += 1) {
    const head = version < 10 ? 12 : 20; // bits for mode and length
    if (8 * length + head <= 8 * dataWords(version)) return version;
  }
  throw new Error("this text is too long for a QR code; show it as a link");
}

/** Returns all codewords in the order in which they are drawn. */
export const wordsOf = (data, version) => interleaved(padded(data, version), version);

function padded(data, version) {
  const bits = [];
  const put = (value, count) => {
    for (let at = count - 1; at >= 0; at -= 1) bits.push((value >> at) & 1);
  };
  put(4, 4);
  put(data.length, version < 10 ? 8 : 16);
  data.forEach((byte) => put(byte, 8));
  const room = 8 * dataWords(version);
  put(0, Math.min(4, room - bits.length));
  put(0, (8 - (bits.length % 8)) % 8);
  for (let pad = 0xec; bits.length < room; pad ^= 0xec ^ 0x11) put(pad, 8);
  return Array.from({ length: bits.length / 8 }, (_, at) =>
    bits.slice(8 * at, 8 * at + 8).reduce((byte, bit) => 2 * byte + bit, 0));
}

/** Interleaves the blocks with their error correction. */
function interleaved(words, version) {
  const [count, extra] = [BLOCKS[version - 1], CORRECTION[version - 1]];
  const short = Math.floor(words.length / count);
  const longer = words.length % count; // the last blocks have one codeword more
  const divisor = generator(extra);
  const blocks = [];
  for (let at = 0, block = 0; block < count; block += 1) {
    const size = short + (block >= count - longer ? 1 : 0);
    const data = words.slice(at, at + size);
    blocks.push({ data, correction: remainder(data, divisor) });
    at += size;
  }
  const all = [];
  for (let at = 0; at <= short; at += 1) {
    for (const { data } of blocks) if (at < data.length) all.push(data[at]);
  }
  for (let at = 0; at < extra; at += 1) {
    for (const { correction } of blocks) all.push(correction[at]);
  }
  return all;
}

// ── Reed and Solomon ───────────────────────────────────────────────────────────────────────────

function product(a, b) {
  let result = 0;
  for (let bit = 7; bit >= 0; bit -= 1) {
    result = (result << 1) ^ ((result >> 7) * 0x11d);
    result ^= ((b >> bit) & 1) * a;
  }
  return result;
}

function generator(degree) {
  const terms = [...Array(degree - 1).fill(0), 1];
  let root = 1;
  for (let at = 0; at < degree; at += 1) {
    for (let j = 0; j < degree; j += 1) terms[j] = product(terms[j], root) ^ (terms[j + 1] ?? 0);
    root = product(root, 2);
  }
  return terms;
}

function remainder(data, divisor) {
  const rest = Array(divisor.length).fill(0);
  for (const byte of data) {
    const factor = byte ^ rest.shift();
    rest.push(0);
    divisor.forEach((term, at) => { rest[at] ^= product(term, factor); });
  }
  return rest;
}
