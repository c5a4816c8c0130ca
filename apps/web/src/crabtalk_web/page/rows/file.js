// Files: a picture has its final shape from the start, with a placeholder until it is loaded; other
// files are cards with name and size. Nothing is opened as a page.

import { h } from "../draw/dom.js";
import { icon } from "../draw/icons.js";
import { placeholder } from "../draw/thumbhash.js";
import { bytes } from "../draw/time.js";
import { plainLabel, visible } from "../draw/visible.js";
import { colour, nameOf } from "./speaker.js";

// Types that browsers draw without running anything.
const DRAWN = /^image\/(?:png|jpeg|gif|webp|avif|bmp)$/i;
const LARGEST_SIDE = 65_535;

const drawn = new WeakMap();

export function renderFile(row, context) {
  const element = h("div", { class: "file" });
  updateFile(element, row, context);
  return element;
}

/** Drawn again when its size becomes known, as with a picture that was just dropped. */
export function updateFile(element, row, context) {
  const { name, size, mimeType, image, speaker } = row;
  const key = JSON.stringify([name, size, mimeType, image, speaker]);
  if (drawn.get(element) === key) return;
  drawn.set(element, key);
  colour(element, speaker);
  const isPicture = isShape(image) && DRAWN.test(mimeType || "image/png");
  const body = isPicture ? renderPicture(row, context) : renderCard(row, context);
  element.replaceChildren(...[nameOf(speaker, context), body].filter(Boolean));
}

function isShape(image) {
  if (!image) return false;
  return [image.width, image.height].every(
    (side) => Number.isFinite(side) && side >= 1 && side <= LARGEST_SIDE,
  );
}

const nameFor = (row) => plainLabel(row.name).slice(0, 200) || "File";

// ── Pictures ───────────────────────────────────────────────────────────────────────────────────

function renderPicture(row, context) {
  const { width, height, thumbhash } = row.image;
  const canvas = typeof thumbhash === "string" ? placeholder(thumbhash) : null;
  canvas?.setAttribute("aria-hidden", "true");
  canvas?.classList.add("picture-placeholder");
  const problem = h("span", { class: "picture-problem" });
  // Narrow pictures stay narrow, but neither too thin to click nor endlessly long.
  const ratio = Math.min(8, Math.max(1 / 4, width / height));
  const button = h("button", {
    type: "button",
    class: "picture",
    "aria-label": `Open ${nameFor(row)}`,
    style: { "--ratio": String(ratio), "--width": `${Math.round(width)}px` },
    onClick: () => context.openFile?.(row),
  }, canvas, problem);
  load(row, context, button, problem);
  return button;
}

async function load(row, context, button, problem) {
  try {
    const blob = await context.session.file(row, {});
    const type = DRAWN.test(blob.type) ? blob.type : "image/png";
    const address = URL.createObjectURL(new Blob([blob], { type }));
    const image = h("img", { class: "picture-image", alt: nameFor(row), src: address });
    await image.decode().finally(() => URL.revokeObjectURL(address));
    button.append(image);
    requestAnimationFrame(() => image.classList.add("is-there"));
  } catch {
    button.classList.add("has-failed");
    problem.textContent = `${nameFor(row)} could not be loaded.`;
  }
}

// ── Other files ────────────────────────────────────────────────────────────────────────────────

const KINDS = [
  [/^image\//, "Image"], [/^text\/html/, "Web page"], [/^text\/markdown/, "Markdown"],
  [/^text\/csv/, "Table"], [/^text\//, "Text"], [/^audio\//, "Audio"], [/^video\//, "Video"],
  [/pdf$/, "PDF"], [/json$/, "JSON"], [/(?:zip|gzip|x-tar|compressed)/, "Archive"],
];

export function kindOf(row) {
  const known = KINDS.find(([pattern]) => pattern.test(row.mimeType ?? ""));
  if (known) return known[1];
  const end = /\.([a-z0-9]{1,8})$/i.exec(row.name ?? "");
  return end ? `${end[1].toUpperCase()} file` : "File";
}

function renderCard(row, context) {
  const bar = h("progress", { class: "progress", max: "1", value: "0", hidden: true,
    "aria-label": `Download of ${nameFor(row)}` });
  const problem = h("p", { class: "file-problem", role: "alert", hidden: true });
  const button = h("button", { type: "button", class: "button quiet small file-save",
    "aria-label": `Download ${nameFor(row)}`,
    onClick: () => save(row, context, { button, bar, problem }) }, icon("download"), "Download");
  const drawing = /^image\//.test(row.mimeType ?? "") ? "picture" : "file";
  return h("div", { class: "file-card" }, icon(drawing),
    h("div", { class: "file-about" },
      h("bdi", { class: "file-name" }, visible(row.name, { isCode: true })),
      h("span", { class: "file-kind" }, [kindOf(row), bytes(row.size)].filter(Boolean).join(", ")),
      bar, problem),
    button);
}

async function save(row, context, { button, bar, problem }) {
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true");
  problem.hidden = true;
  bar.hidden = false;
  try {
    const blob = await context.session.file(row, { onProgress: (part) => { bar.value = part; } });
    // Plain bytes: a foreign page or drawing must not open on our origin.
    const address = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
    h("a", { href: address, download: nameFor(row) }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
    context.announce?.(`${nameFor(row)} is downloaded.`);
  } catch (error) {
    problem.textContent = error?.message || "It could not be downloaded. Try again.";
    problem.hidden = false;
  } finally {
    button.removeAttribute("aria-disabled");
    bar.hidden = true;
  }
}
