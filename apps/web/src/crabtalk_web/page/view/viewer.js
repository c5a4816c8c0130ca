// Files of a conversation, opened: pictures are shown, everything else is saved. Nothing that came
// from elsewhere is ever opened as a page.

import { h } from "../draw/dom.js";
import { bytes } from "../draw/time.js";
import { openDialog } from "./dialog.js";
import { problemLine, sentence } from "./task.js";

const SHOWN = /^image\/(png|jpe?g|gif|webp|avif|bmp)$/;

export async function openFile(session, row) {
  let address = "";
  await openDialog(row.name, (close) => {
    const stage = h("div", { class: "viewer-stage" });
    const bar = h("progress", { class: "progress", max: "1", value: "0", "aria-label": "Loading" });
    const problem = problemLine();
    const save = h("a", { class: "button primary", role: "button", "aria-disabled": "true" }, "Save");
    stage.append(bar);
    session.file(row, { onProgress: (part) => (bar.value = part) }).then((blob) => {
      const isShown = SHOWN.test(row.mimeType ?? blob.type);
      // Without a type of its own it can only be saved, whatever the tab it is opened in.
      address = URL.createObjectURL(isShown ? blob : new Blob([blob], { type: "application/octet-stream" }));
      save.setAttribute("href", address);
      save.setAttribute("download", row.name);
      save.removeAttribute("aria-disabled");
      save.removeAttribute("role");
      stage.replaceChildren(isShown ? h("img", { class: "viewer-image", src: address, alt: row.name })
        : h("p", { class: "muted" }, `${bytes(row.size)}, opened on this device.`));
    }, (error) => {
      bar.remove();
      problem.textContent = sentence(error);
      problem.hidden = false;
    });
    return [stage, problem, h("div", { class: "actions" },
      h("button", { class: "button", type: "button", onclick: () => close() }, "Close"), save)];
  }, { wide: Boolean(row.image) });
  if (address) setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
