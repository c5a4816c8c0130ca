// Opened files: pictures are shown, everything else is saved. Foreign content is never opened as a
// page.

import { h } from "../draw/dom.js";
import { bytes } from "../draw/time.js";
import { actions, button } from "./controls.js";
import { openDialog } from "./dialog.js";
import { problemLine, tell } from "./task.js";

const BYTES = "application/octet-stream";
const SHOWN = /^image\/(png|jpe?g|gif|webp|avif|bmp)$/;

export async function openFile(session, row) {
  let address = "";
  await openDialog(row.name, (close) => {
    const stage = h("div", { class: "viewer-stage" });
    const bar = h("progress", { class: "progress", max: "1", value: "0", "aria-label": "Loading" });
    const problem = problemLine();
    const save = h("a", { class: "button primary", hidden: true }, "Save");
    stage.append(bar);
    session.file(row, { onProgress: (part) => (bar.value = part) }).then((blob) => {
      const isShown = SHOWN.test(row.mimeType ?? blob.type);
      // Without a type it can only be saved, in whatever tab it is opened.
      address = URL.createObjectURL(isShown ? blob : new Blob([blob], { type: BYTES }));
      save.setAttribute("href", address);
      save.setAttribute("download", row.name);
      save.hidden = false;
      const picture = { class: "viewer-image", src: address, alt: row.name };
      stage.replaceChildren(isShown ? h("img", picture)
        : h("p", { class: "muted" }, `${bytes(row.size)}, opened on this device.`));
    }, (error) => {
      bar.remove();
      tell(problem, error);
    });
    return [stage, problem, actions(button("Close", () => close()), save)];
  }, { wide: Boolean(row.image) });
  if (address) setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
