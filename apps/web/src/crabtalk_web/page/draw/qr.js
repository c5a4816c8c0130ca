// QR codes of texts: bytes with error correction of level M, up to version 20 (666 bytes), as the
// standard has them. Drawn as one path.

import { svg } from "./dom.js";

// Of each version from 1 on: codewords for correction in a block, and blocks, at level M.
const CORRECTION = [10, 16, 26, 18, 24, 16, 18, 22, 22, 26, 30, 22, 22, 24, 24, 28, 28, 26, 26, 26];
const BLOCKS = [1, 1, 1, 2, 2, 4, 4, 4, 5, 5, 5, 8, 9, 9, 10, 10, 11, 13, 14, 16];
const LEVEL_M = 0;

/** The code of a text: rows of booleans, dark is true. `mask` is chosen by the standard's rules. */
export function qrOf(text, mask = null) {
  const data = new TextEncoder().encode(text);
  const version = versionFor(data.length);
  const words = interleaved(codewords(data, version), version);
  let best = null;
  for (const candidate of mask === null ? [0, 1, 2, 3, 4, 5, 6, 7] : [mask]) {
    const code = new Code(version);
    code.fill(words, candidate);
    const score = mask === null ? penalty(code.rows) : 0;
    if (best === null || score < best.score) best = { rows: code.rows, score };
  }
  return best.rows;
}

/** The code as a drawing, dark on white with the quiet zone that readers need. */
export function renderQr(text, label = "QR code") {
  const rows = qrOf(text);
  const size = rows.length + 8;
  const path = rows
    .flatMap((row, y) => row.map((isDark, x) => (isDark ? `M${x + 4} ${y + 4}h1v1h-1z` : "")))
    .join("");
  return svg("svg", {
    class: "qr",
    viewBox: `0 0 ${size} ${size}`,
    role: "img",
    "aria-label": label,
    "shape-rendering": "crispEdges",
  }, svg("rect", { width: size, height: size, fill: "#fff" }), svg("path", { d: path, fill: "#000" }));
}

// ── Bits ───────────────────────────────────────────────────────────────────────────────────────

const sizeOf = (version) => 17 + 4 * version;

/** All codewords that a version has room for. */
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

function versionFor(length) {
  for (let version = 1; version <= CORRECTION.length; version += 1) {
    const head = version < 10 ? 12 : 20; // bits: the mode, and how many bytes there are
    if (8 * length + head <= 8 * dataWords(version)) return version;
  }
  throw new Error("this text is too long for a QR code; show it as a link");
}

function codewords(data, version) {
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

/** Blocks with their correction, word by word in turn. */
function interleaved(words, version) {
  const [count, extra] = [BLOCKS[version - 1], CORRECTION[version - 1]];
  const short = Math.floor(words.length / count);
  const longer = words.length % count; // the last blocks have one word more
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
  for (let at = 0; at < extra; at += 1) for (const { correction } of blocks) all.push(correction[at]);
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

// ── The field ──────────────────────────────────────────────────────────────────────────────────

const MASKS = [
  (x, y) => (x + y) % 2,
  (x, y) => y % 2,
  (x) => x % 3,
  (x, y) => (x + y) % 3,
  (x, y) => (Math.floor(x / 3) + Math.floor(y / 2)) % 2,
  (x, y) => ((x * y) % 2) + ((x * y) % 3),
  (x, y) => (((x * y) % 2) + ((x * y) % 3)) % 2,
  (x, y) => (((x + y) % 2) + ((x * y) % 3)) % 2,
];

class Code {
  constructor(version) {
    this.version = version;
    this.size = sizeOf(version);
    this.rows = Array.from({ length: this.size }, () => Array(this.size).fill(false));
    this.fixed = Array.from({ length: this.size }, () => Array(this.size).fill(false));
    this.drawFixed();
  }

  set(x, y, isDark) {
    if (x < 0 || y < 0 || x >= this.size || y >= this.size) return;
    this.rows[y][x] = isDark;
    this.fixed[y][x] = true;
  }

  fill(words, mask) {
    this.drawFormat(mask);
    let at = 0;
    for (let right = this.size - 1; right >= 1; right -= 2) {
      if (right === 6) right = 5;
      for (let step = 0; step < this.size; step += 1) {
        const isUp = ((right + 1) & 2) === 0;
        const y = isUp ? this.size - 1 - step : step;
        for (const x of [right, right - 1]) {
          if (this.fixed[y][x]) continue;
          const bit = at < 8 * words.length && ((words[at >> 3] >> (7 - (at & 7))) & 1) === 1;
          this.rows[y][x] = bit !== (MASKS[mask](x, y) === 0);
          at += 1;
        }
      }
    }
  }

  drawFixed() {
    for (let at = 0; at < this.size; at += 1) {
      this.set(6, at, at % 2 === 0);
      this.set(at, 6, at % 2 === 0);
    }
    for (const [x, y] of [[3, 3], [this.size - 4, 3], [3, this.size - 4]]) this.drawFinder(x, y);
    const places = this.marks();
    const last = places.length - 1;
    places.forEach((x, i) => places.forEach((y, j) => {
      const isCorner = (i === 0 && (j === 0 || j === last)) || (i === last && j === 0);
      if (!isCorner) this.drawMark(x, y);
    }));
    this.drawFormat(0);
    if (this.version >= 7) this.drawVersion();
  }

  drawFinder(x, y) {
    for (let dy = -4; dy <= 4; dy += 1) {
      for (let dx = -4; dx <= 4; dx += 1) {
        const ring = Math.max(Math.abs(dx), Math.abs(dy));
        this.set(x + dx, y + dy, ring !== 2 && ring !== 4);
      }
    }
  }

  drawMark(x, y) {
    for (let dy = -2; dy <= 2; dy += 1) {
      for (let dx = -2; dx <= 2; dx += 1) {
        this.set(x + dx, y + dy, Math.max(Math.abs(dx), Math.abs(dy)) !== 1);
      }
    }
  }

  marks() {
    if (this.version === 1) return [];
    const count = Math.floor(this.version / 7) + 2;
    const step = 2 * Math.ceil((4 * this.version + 4) / (2 * count - 2));
    const places = [6];
    for (let at = this.size - 7; places.length < count; at -= step) places.splice(1, 0, at);
    return places;
  }

  drawFormat(mask) {
    const data = (LEVEL_M << 3) | mask;
    const bits = ((data << 10) | checked(data, 10, 0x537)) ^ 0x5412;
    const bit = (at) => ((bits >> at) & 1) === 1;
    for (let at = 0; at <= 5; at += 1) this.set(8, at, bit(at));
    this.set(8, 7, bit(6));
    this.set(8, 8, bit(7));
    this.set(7, 8, bit(8));
    for (let at = 9; at < 15; at += 1) this.set(14 - at, 8, bit(at));
    for (let at = 0; at < 8; at += 1) this.set(this.size - 1 - at, 8, bit(at));
    for (let at = 8; at < 15; at += 1) this.set(8, this.size - 15 + at, bit(at));
    this.set(8, this.size - 8, true);
  }

  drawVersion() {
    const bits = (this.version << 12) | checked(this.version, 12, 0x1f25);
    for (let at = 0; at < 18; at += 1) {
      const [a, b] = [this.size - 11 + (at % 3), Math.floor(at / 3)];
      this.set(a, b, ((bits >> at) & 1) === 1);
      this.set(b, a, ((bits >> at) & 1) === 1);
    }
  }
}

function checked(value, length, divisor) {
  let rest = value;
  for (let at = 0; at < length; at += 1) rest = (rest << 1) ^ ((rest >> (length - 1)) * divisor);
  return rest & ((1 << length) - 1);
}

// ── Which mask is easiest to read ──────────────────────────────────────────────────────────────

const FINDERS = ["10111010000", "00001011101"];

function penalty(rows) {
  const columns = rows.map((_, at) => rows.map((row) => row[at]));
  let score = 0;
  for (const line of [...rows, ...columns]) {
    const text = line.map(Number).join("");
    for (const run of text.match(/0{5,}|1{5,}/g) ?? []) score += run.length - 2;
    for (const finder of FINDERS) {
      for (let at = text.indexOf(finder); at !== -1; at = text.indexOf(finder, at + 1)) score += 40;
    }
  }
  for (let y = 1; y < rows.length; y += 1) {
    for (let x = 1; x < rows.length; x += 1) {
      const dark = rows[y][x] + rows[y - 1][x] + rows[y][x - 1] + rows[y - 1][x - 1];
      if (dark === 0 || dark === 4) score += 3;
    }
  }
  const share = rows.flat().filter(Boolean).length / rows.length ** 2;
  return score + 10 * Math.floor(Math.abs(20 * share - 10));
}
