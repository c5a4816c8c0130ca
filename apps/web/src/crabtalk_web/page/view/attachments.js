// Files waiting in the composer: shown at once from memory, sent with the text.

import { arrange, h } from "../draw/dom.js";
import { bytes } from "../draw/time.js";
import { iconButton } from "./controls.js";
import { icon } from "./icons.js";
import { notify } from "./notices.js";

const MOST_FILES = 20;
const SHOWN = /^image\/(png|jpe?g|gif|webp|avif|bmp)$/;

// By conversation, so that they are still there after visiting another one.
const waiting = new Map();

export class Attachments {
  #chips = new Map();
  #changed;
  #largest;

  constructor(session, changed) {
    this.files = waiting.get(session.id) ?? [];
    waiting.set(session.id, this.files);
    this.#largest = session.largestFile;
    this.#changed = changed;
    this.element = h("ul", { class: "plain chips", "aria-label": "Attached files", hidden: true });
    this.draw();
  }

  add(files) {
    for (const file of files) {
      const problem = this.#problemOf(file);
      if (problem) notify(problem);
      else this.files.push(file);
    }
    this.draw();
    this.#changed();
  }

  #problemOf({ name, size }) {
    if (size > this.#largest) return `${name} is too large: ${bytes(this.#largest)} is the most.`;
    if (!size) return `${name} is empty, or a folder; those cannot be sent.`;
    if (this.files.length < MOST_FILES) return "";
    return `${MOST_FILES} files are the most that one message takes.`;
  }

  /** Removes and returns the files. */
  take() {
    const taken = this.files.splice(0);
    this.draw();
    return taken;
  }

  draw() {
    for (const [file, chip] of this.#chips) {
      if (this.files.includes(file)) continue;
      chip.forget();
      this.#chips.delete(file);
    }
    for (const file of this.files) {
      if (!this.#chips.has(file)) this.#chips.set(file, chip(file, () => this.#remove(file)));
    }
    arrange(this.element, this.files.map((file) => this.#chips.get(file).element));
    this.element.hidden = !this.files.length;
  }

  close() {
    for (const one of this.#chips.values()) one.forget();
    this.#chips.clear();
  }

  #remove(file) {
    this.files.splice(this.files.indexOf(file), 1);
    this.draw();
    this.#changed();
  }
}

function chip(file, remove) {
  const address = SHOWN.test(file.type) ? URL.createObjectURL(file) : "";
  const picture = address ? h("img", { class: "chip-image", src: address, alt: "" }) : icon("file");
  const element = h("li", { class: "chip" }, picture,
    h("span", { class: "chip-name" }, file.name),
    h("span", { class: "chip-size" }, bytes(file.size)),
    iconButton("close", `Remove ${file.name}`, remove));
  return { element, forget: () => address && URL.revokeObjectURL(address) };
}
