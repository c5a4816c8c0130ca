// ThumbHash: an image in about 25 bytes. A few cosine terms of brightness, of two colour
// differences and of alpha, each in four bits, behind a header of five or six bytes. The format is
// Evan Wallace's.

/** Hashes at most 100 by 100 pixels of four bytes each. @returns {number[]} */
export function thumbhash(width, height, rgba) {
  const [luma, yellow, red, alpha] = channels(rgba);
  const hasAlpha = alpha.some((value) => value < 1);
  const limit = hasAlpha ? 5 : 7; // alpha takes the space of finer brightness
  const longer = Math.max(width, height);
  const across = Math.max(1, Math.round((limit * width) / longer));
  const down = Math.max(1, Math.round((limit * height) / longer));
  const bright = terms(luma, width, height, Math.max(3, across), Math.max(3, down));
  const p = terms(yellow, width, height, 3, 3);
  const q = terms(red, width, height, 3, 3);
  const a = hasAlpha ? terms(alpha, width, height, 5, 5) : null;
  const isWide = width > height;
  const head =
    Math.round(63 * bright.mean) |
    (Math.round(31.5 + 31.5 * p.mean) << 6) |
    (Math.round(31.5 + 31.5 * q.mean) << 12) |
    (Math.round(31 * bright.scale) << 18) |
    (Number(hasAlpha) << 23);
  const tail =
    (isWide ? down : across) |
    (Math.round(63 * p.scale) << 3) |
    (Math.round(63 * q.scale) << 9) |
    (Number(isWide) << 15);
  const hash = [head & 255, (head >> 8) & 255, head >> 16, tail & 255, tail >> 8];
  if (a) hash.push(Math.round(15 * a.mean) | (Math.round(15 * a.scale) << 4));
  const nibbles = [bright, p, q, ...(a ? [a] : [])].flatMap(scaled);
  for (let at = 0; at < nibbles.length; at += 2) {
    hash.push(nibbles[at] | ((nibbles[at + 1] ?? 0) << 4));
  }
  return hash;
}

/** Returns brightness, yellow-blue, red-green and alpha, drawn over the image's average colour. */
function channels(rgba) {
  const mean = [0, 0, 0];
  let seen = 0;
  for (let at = 0; at < rgba.length; at += 4) {
    const alpha = rgba[at + 3] / 255;
    for (let c = 0; c < 3; c += 1) mean[c] += (alpha * rgba[at + c]) / 255;
    seen += alpha;
  }
  const found = [[], [], [], []];
  for (let at = 0; at < rgba.length; at += 4) {
    const alpha = rgba[at + 3] / 255;
    const [r, g, b] = mean.map((sum, c) =>
      (seen ? sum / seen : 0) * (1 - alpha) + (alpha * rgba[at + c]) / 255);
    [(r + g + b) / 3, (r + g) / 2 - b, r - g, alpha].forEach((v, c) => found[c].push(v));
  }
  return found;
}

/**
 * Returns the lowest cosine terms of a channel: their mean, the others, and the largest of those.
 */
function terms(channel, width, height, nx, ny) {
  const found = { mean: 0, scale: 0, others: [] };
  for (let cy = 0; cy < ny; cy += 1) {
    for (let cx = 0; cx * ny < nx * (ny - cy); cx += 1) {
      let term = 0;
      for (let y = 0, place = 0; y < height; y += 1) {
        const along = Math.cos((Math.PI / height) * cy * (y + 0.5));
        for (let x = 0; x < width; x += 1, place += 1) {
          term += channel[place] * Math.cos((Math.PI / width) * cx * (x + 0.5)) * along;
        }
      }
      term /= width * height;
      if (!cx && !cy) {
        found.mean = term;
      } else {
        found.others.push(term);
        found.scale = Math.max(found.scale, Math.abs(term));
      }
    }
  }
  return found;
}

const scaled = ({ scale, others }) =>
  others.map((term) => (scale ? Math.round(15 * (0.5 + (0.5 / scale) * term)) : 0));
