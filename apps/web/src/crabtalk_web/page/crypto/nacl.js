// X25519 and Ed25519 for browsers that lack them. It uses BigInt: slow, short, and rarely called.

import { joined } from "./bytes.js";

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
