// The worker that seals and opens files without blocking the page.

import { openBlob, sealBlob } from "./secretbox.js";

onmessage = ({ data: { number, verb, key, bytes } }) => {
  const done = verb === "seal" ? sealBlob(key, bytes) : openBlob(key, bytes);
  const moved = done === null ? [] : [done.buffer];
  postMessage({ number, done }, moved);
};
