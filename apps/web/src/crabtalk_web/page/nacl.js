// The part of NaCl that browsers do not have: box, secretbox and signatures, as every client of the
// relay uses them. Curves are done in whole numbers of any size: slow, short, and used a few times.

const P = 2n ** 255n - 19n;
const L = 2n ** 252n + 27742317777372353535851937790883648493n;
const D = 37095705934669439343138083508754565189542113879843219016388785533085940283555n;
const BASE = [
  15112221349535400772501151409588531511454012693041857206046113283949847762202n,
  46316835694926478169428394003475163141307993866256225615783033603165251855960n,
];

const mod = (a, m = P) => ((a % m) + m) % m;

function power(base, exponent, m = P) {
  let result = 1n;
  for (base = mod(base, m); exponent > 0n; exponent >>= 1n) {
    if (exponent & 1n) result = (result * base) % m;
    base = (base * base) % m;
  }
  return result;
}

const inverse = (a) => power(a, P - 2n);

export function number(bytes) {
  return bytes.reduceRight((all, byte) => (all << 8n) | BigInt(byte), 0n);
}

export function bytesOf(value, size = 32) {
  return Uint8Array.from({ length: size }, (_, at) => Number((value >> BigInt(8 * at)) & 255n));
}

export function joined(...parts) {
  const all = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

// ── X25519 ─────────────────────────────────────────────────────────────────────────────────────

export function scalarMultiply(secret, point) {
  const scalar = secret.slice();
  scalar[0] &= 248;
  scalar[31] = (scalar[31] & 127) | 64;
  const k = number(scalar);
  const x1 = number(point) & (2n ** 255n - 1n);
  let [x2, z2, x3, z3, swapped] = [1n, 0n, x1, 1n, 0n];
  for (let t = 254n; t >= 0n; t -= 1n) {
    const bit = (k >> t) & 1n;
    if (bit !== swapped) [x2, x3, z2, z3] = [x3, x2, z3, z2];
    swapped = bit;
    const [a, b] = [mod(x2 + z2), mod(x2 - z2)];
    const [aa, bb] = [(a * a) % P, (b * b) % P];
    const e = mod(aa - bb);
    const [da, cb] = [mod((x3 - z3) * a), mod((x3 + z3) * b)];
    x3 = power(da + cb, 2n);
    z3 = mod(x1 * power(da - cb, 2n));
    x2 = (aa * bb) % P;
    z2 = mod(e * (aa + 121665n * e));
  }
  if (swapped) [x2, z2] = [x3, z3];
  return bytesOf(mod(x2 * inverse(z2)));
}

export const publicKey = (secret) => scalarMultiply(secret, bytesOf(9n));

// ── Salsa20 and Poly1305 ───────────────────────────────────────────────────────────────────────

const words = (bytes) => {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Array.from({ length: bytes.length / 4 }, (_, at) => view.getUint32(4 * at, true));
};
const SIGMA = words(new TextEncoder().encode("expand 32-byte k"));
const ROUND = [
  [4, 0, 12, 7], [8, 4, 0, 9], [12, 8, 4, 13], [0, 12, 8, 18],
  [9, 5, 1, 7], [13, 9, 5, 9], [1, 13, 9, 13], [5, 1, 13, 18],
  [14, 10, 6, 7], [2, 14, 10, 9], [6, 2, 14, 13], [10, 6, 2, 18],
  [3, 15, 11, 7], [7, 3, 15, 9], [11, 7, 3, 13], [15, 11, 7, 18],
  [1, 0, 3, 7], [2, 1, 0, 9], [3, 2, 1, 13], [0, 3, 2, 18],
  [6, 5, 4, 7], [7, 6, 5, 9], [4, 7, 6, 13], [5, 4, 7, 18],
  [11, 10, 9, 7], [8, 11, 10, 9], [9, 8, 11, 13], [10, 9, 8, 18],
  [12, 15, 14, 7], [13, 12, 15, 9], [14, 13, 12, 13], [15, 14, 13, 18],
];

function mixed(input) {
  const x = Uint32Array.from(input);
  for (let round = 0; round < 10; round += 1) {
    for (const [to, a, b, turn] of ROUND) {
      const sum = (x[a] + x[b]) >>> 0;
      x[to] ^= (sum << turn) | (sum >>> (32 - turn));
    }
  }
  return x;
}

function block(key, input) {
  const [k, n] = [words(key), words(input)];
  return [
    SIGMA[0], k[0], k[1], k[2], k[3], SIGMA[1], n[0], n[1],
    n[2], n[3], SIGMA[2], k[4], k[5], k[6], k[7], SIGMA[3],
  ];
}

function littleEndian(numbers) {
  const bytes = new Uint8Array(4 * numbers.length);
  const view = new DataView(bytes.buffer);
  numbers.forEach((value, at) => view.setUint32(4 * at, value, true));
  return bytes;
}

function hsalsa(key, input) {
  const x = mixed(block(key, input));
  return littleEndian([0, 5, 10, 15, 6, 7, 8, 9].map((at) => x[at]));
}

function xsalsa(key, nonce, data) {
  const inner = hsalsa(key, nonce.subarray(0, 16));
  const out = new Uint8Array(data.length);
  for (let at = 0, count = 0; at < data.length; at += 64, count += 1) {
    const input = joined(nonce.subarray(16, 24), bytesOf(BigInt(count), 8));
    const start = block(inner, input);
    const x = mixed(start);
    const stream = littleEndian(start.map((value, index) => (value + x[index]) >>> 0));
    for (let i = 0; i < 64 && at + i < data.length; i += 1) out[at + i] = data[at + i] ^ stream[i];
  }
  return out;
}

function poly1305(key, data) {
  const r = number(key.subarray(0, 16)) & 0x0ffffffc0ffffffc0ffffffc0fffffffn;
  const prime = 2n ** 130n - 5n;
  let sum = 0n;
  for (let at = 0; at < data.length; at += 16) {
    const part = data.subarray(at, at + 16);
    sum = ((sum + number(part) + (1n << BigInt(8 * part.length))) * r) % prime;
  }
  return bytesOf((sum + number(key.subarray(16, 32))) & (2n ** 128n - 1n), 16);
}

export function sealSecretbox(key, nonce, plain) {
  const stream = xsalsa(key, nonce, joined(new Uint8Array(32), plain));
  const sealed = stream.subarray(32);
  return joined(poly1305(stream.subarray(0, 32), sealed), sealed);
}

// What cannot be opened is null.
export function openSecretbox(key, nonce, boxed) {
  if (boxed.length < 16) return null;
  const sealed = boxed.subarray(16);
  const tag = poly1305(xsalsa(key, nonce, new Uint8Array(32)), sealed);
  if (tag.reduce((differs, byte, at) => differs | (byte ^ boxed[at]), 0)) return null;
  return xsalsa(key, nonce, joined(new Uint8Array(32), sealed)).subarray(32);
}

const sharedKey = (secret, theirs) =>
  hsalsa(scalarMultiply(secret, theirs), new Uint8Array(16));

// For one reader, by anybody: the public half of a key made for this, a nonce, the box.
export function sealBox(theirs, plain) {
  const once = crypto.getRandomValues(new Uint8Array(32));
  const nonce = crypto.getRandomValues(new Uint8Array(24));
  return joined(publicKey(once), nonce, sealSecretbox(sharedKey(once, theirs), nonce, plain));
}

export function openBox(secret, bundle) {
  if (bundle.length < 72) return null;
  const key = sharedKey(secret, bundle.subarray(0, 32));
  return openSecretbox(key, bundle.subarray(32, 56), bundle.subarray(56));
}

// ── Ed25519 ────────────────────────────────────────────────────────────────────────────────────

function add([x1, y1, z1, t1], [x2, y2, z2, t2]) {
  const a = mod((y1 - x1) * (y2 - x2));
  const b = mod((y1 + x1) * (y2 + x2));
  const c = mod(2n * t1 * t2 * D);
  const d = mod(2n * z1 * z2);
  const [e, f, g, h] = [b - a, d - c, d + c, b + a];
  return [mod(e * f), mod(g * h), mod(f * g), mod(e * h)];
}

function times(scalar) {
  let point = [BASE[0], BASE[1], 1n, mod(BASE[0] * BASE[1])];
  let sum = [0n, 1n, 1n, 0n];
  for (; scalar > 0n; scalar >>= 1n) {
    if (scalar & 1n) sum = add(sum, point);
    point = add(point, point);
  }
  return sum;
}

function packed([x, y, z]) {
  const back = inverse(z);
  const bytes = bytesOf(mod(y * back));
  bytes[31] |= Number(mod(x * back) & 1n) << 7;
  return bytes;
}

const sha512 = async (data) => new Uint8Array(await crypto.subtle.digest("SHA-512", data));

async function signingScalar(seed) {
  const hashed = await sha512(seed);
  hashed[0] &= 248;
  hashed[31] = (hashed[31] & 127) | 64;
  return [number(hashed.subarray(0, 32)), hashed.subarray(32)];
}

export async function signingKey(seed) {
  return packed(times((await signingScalar(seed))[0]));
}

export async function sign(seed, message) {
  const [scalar, prefix] = await signingScalar(seed);
  const key = packed(times(scalar));
  const r = mod(number(await sha512(joined(prefix, message))), L);
  const point = packed(times(r));
  const k = mod(number(await sha512(joined(point, key, message))), L);
  return joined(point, bytesOf(mod(r + k * scalar, L)));
}
