// Prepares pictures for sending: their size, and a ThumbHash as placeholder while they load.

import { thumbhash } from "./thumbhash.js";

// Larger images take long to process and give no better result.
const LARGEST = 32;
// Larger images are sent as files, without a placeholder.
const MOST_PIXELS = 50_000_000;

/** Returns `{width, height, thumbhash}`; null if the browser cannot draw it. */
export async function pictureOf(blob) {
  if (!blob.type.startsWith("image/") || blob.type === "image/svg+xml") return null;
  try {
    const image = await createImageBitmap(blob, { imageOrientation: "from-image" });
    const { width, height } = image;
    if (!width || !height || width * height > MOST_PIXELS) return null;
    const scale = Math.min(1, LARGEST / Math.max(width, height));
    const [w, h] = [width, height].map((side) => Math.max(1, Math.round(side * scale)));
    const context = new OffscreenCanvas(w, h).getContext("2d");
    context.drawImage(image, 0, 0, w, h);
    image.close();
    const hash = thumbhash(w, h, context.getImageData(0, 0, w, h).data);
    return { width, height, thumbhash: btoa(String.fromCharCode(...hash)) };
  } catch {
    return null;
  }
}
