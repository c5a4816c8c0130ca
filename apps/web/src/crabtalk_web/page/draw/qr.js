// QR codes of texts up to 666 bytes, with error correction level M: the layout of the modules, and
// the drawing.

import { svg } from "./dom.js";
import { versionFor, wordsOf } from "./qr_words.js";

const LEVEL_M = 0;

/**
 * Returns the code of a text: rows of booleans, dark is true. `mask` is chosen by the standard's
 * rules.
 */
export function qrOf(text, mask = null) {
  const data = new TextEncoder().encode(text);
  const version = versionFor(data.length);
  const words = wordsOf(data, version);
  let best = null;
  for (const candidate of mask === null ? [0, 1, 2, 3, 4, 5, 6, 7] : [mask]) {
    const code = new Code(version);
    code.fill(words, candidate);
    const score = mask === null ? penalty(code.rows) : 0;
    if (best === null || score < best.score) best = { rows: code.rows, score };
  }
  return best.rows;
}

/** Returns the code as a drawing, dark on white with the quiet zone that readers need. */
export function renderQr(text, label = "QR code") {
  const rows = qrOf(text);
  const size = rows.length + 8;
  const path = rows
    .flatMap((row, y) => row.map((isDark, x) => (isDark ? `M${x + 4} ${y + 4}h1v1h-1z` : "")))
    .join("");
  const props = { class: "qr", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": label };
  return svg("svg", { ...props, "shape-rendering": "crispEdges" },
    svg("rect", { width: size, height: size, fill: "#fff" }),
    svg("path", { d: path, fill: "#000" }));
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
    this.size = 17 + 4 * version;
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
