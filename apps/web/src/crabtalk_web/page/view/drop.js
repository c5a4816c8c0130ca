// Dropping files on a conversation. Entering a child fires a leave event as well, hence the
// counter.

import { h } from "../draw/dom.js";
import { icon } from "./icons.js";

export class DropTarget {
  #depth = 0;
  #veil = h("div", { class: "drop-veil", hidden: true, "aria-hidden": "true" },
    h("p", {}, icon("attach"), "Drop to attach"));

  constructor(element, take) {
    const end = () => {
      this.#depth = 0;
      this.#veil.hidden = true;
    };
    const listeners = {
      dragenter: (event) => {
        if (!hasFiles(event)) return;
        this.#depth += 1;
        this.#veil.hidden = false;
        event.preventDefault();
      },
      dragover: (event) => {
        if (!hasFiles(event)) return;
        event.dataTransfer.dropEffect = "copy";
        event.preventDefault();
      },
      dragleave: (event) => {
        if (!hasFiles(event)) return;
        this.#depth -= 1;
        if (this.#depth <= 0) end();
      },
      drop: (event) => {
        if (!hasFiles(event)) return;
        event.preventDefault();
        end();
        take([...event.dataTransfer.files]);
      },
    };
    const off = new AbortController();
    for (const [name, handle] of Object.entries(listeners)) {
      element.addEventListener(name, handle, { signal: off.signal });
    }
    element.append(this.#veil);
    this.off = () => off.abort();
  }
}

function hasFiles(event) {
  return [...(event.dataTransfer?.types ?? [])].includes("Files");
}
