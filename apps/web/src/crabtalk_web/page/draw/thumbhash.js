// Decodes a ThumbHash, an image in about 25 bytes that is shown while the real one loads. The
// format is Evan Wallace's: a few cosine terms of brightness, of two colour differences and of
// alpha, four bits each, behind a header of five or six bytes.

const SHOWN = 32; // pixels of a placeholder, along its longer side

/** Returns the pixels of a hash, {width, height, rgba}, or null if it is invalid. */
export function pixelsOf(bytes) {
  if (bytes.length < 5) return null;
  const head = bytes[0] | (bytes[1] << 8) | (bytes[2] << 16);
  const tail = bytes[3] | (bytes[4] << 8);
  const hasAlpha = head >> 23 === 1;
  const isWide = tail >> 15 === 1;
  const side = Math.max(1, tail & 7);
  const limit = hasAlpha ? 5 : 7;
  const [lx, ly] = isWide ? [limit, side] : [side, limit];
  const [nx, ny] = [Math.max(3, lx), Math.max(3, ly)];
  const reader = nibblesFrom(bytes, hasAlpha ? 6 : 5);
  const scaleL = ((head >> 18) & 31) / 31;
  const l = { mean: (head & 63) / 63, nx, ny, list: read(reader, nx, ny, scaleL) };
  // Colours are decoded slightly stronger, because rounding has made them weaker.
  const colour = (mean, scale) =>
    ({ mean: mean / 31.5 - 1, nx: 3, ny: 3, list: read(reader, 3, 3, (scale / 63) * 1.25) });
  const p = colour((head >> 6) & 63, (tail >> 3) & 63);
  const q = colour((head >> 12) & 63, (tail >> 9) & 63);
  const a = hasAlpha
    ? { mean: (bytes[5] & 15) / 15, nx: 5, ny: 5, list: read(reader, 5, 5, (bytes[5] >> 4) / 15) }
    : null;
  if (reader.isShort) return null;
  const ratio = lx / ly;
  const width = Math.round(ratio > 1 ? SHOWN : SHOWN * ratio);
  const height = Math.round(ratio > 1 ? SHOWN / ratio : SHOWN);
  return { width, height, rgba: painted(width, height, l, p, q, a) };
}

function nibblesFrom(bytes, start) {
  let at = 2 * start;
  const reader = { isShort: false, next: () => {
    const byte = bytes[at >> 1];
    if (byte === undefined) reader.isShort = true;
    const nibble = at & 1 ? byte >> 4 : byte & 15;
    at += 1;
    return nibble;
  } };
  return reader;
}

function read(reader, nx, ny, scale) {
  const list = [];
  for (let cy = 0; cy < ny; cy += 1) {
    for (let cx = cy ? 0 : 1; cx * ny < nx * (ny - cy); cx += 1) {
      list.push((reader.next() / 7.5 - 1) * scale);
    }
  }
  return list;
}

function painted(width, height, l, p, q, a) {
  const rgba = new Uint8ClampedArray(4 * width * height);
  const wave = (size, place) =>
    Float64Array.from({ length: 7 }, (_, c) => Math.cos((Math.PI / size) * (place + 0.5) * c));
  const [across, down] = [width, height].map((size) =>
    Array.from({ length: size }, (_, place) => wave(size, place)));
  for (let y = 0, at = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1, at += 4) {
      const [luma, yellow, red] = [l, p, q].map((channel) => valueAt(channel, across[x], down[y]));
      const blue = luma - (2 / 3) * yellow;
      const r = (3 * luma - blue + red) / 2;
      rgba[at] = 255 * r;
      rgba[at + 1] = 255 * (r - red);
      rgba[at + 2] = 255 * blue;
      rgba[at + 3] = a ? 255 * valueAt(a, across[x], down[y]) : 255;
    }
  }
  return rgba;
}

function valueAt({ mean, nx, ny, list }, fx, fy) {
  let value = mean;
  for (let cy = 0, at = 0; cy < ny; cy += 1) {
    for (let cx = cy ? 0 : 1; cx * ny < nx * (ny - cy); cx += 1, at += 1) {
      value += list[at] * fx[cx] * fy[cy] * 2;
    }
  }
  return value;
}

/** Returns a canvas with a base64 hash, or null if it is invalid. */
export function placeholder(thumbhash) {
  let bytes;
  try {
    bytes = Uint8Array.from(atob(thumbhash), (char) => char.charCodeAt(0));
  } catch {
    return null;
  }
  const pixels = pixelsOf(bytes);
  if (pixels === null) return null;
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: pixels.width, height: pixels.height });
  const image = new ImageData(pixels.rgba, pixels.width, pixels.height);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
