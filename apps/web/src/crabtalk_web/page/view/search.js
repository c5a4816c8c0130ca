// Search over what is on this device: it sends nothing, and works offline.

import { h, setText } from "../draw/dom.js";
import { when } from "../draw/time.js";
import { paneHead } from "./controls.js";
import { sentence } from "./task.js";

const PAUSE_MS = 120;
const MOST = 100;

let last = "";

export class SearchView {
  #device;
  #open;
  #timer = 0;
  #stop = new AbortController();
  #say = h("p", { class: "search-say", role: "status" });
  #results = h("ul", { class: "plain" });
  #input;

  title = "Search";

  /** @param {{back: () => void, open: (hit) => void}} ways */
  constructor(device, { back, open }) {
    this.#device = device;
    this.#open = open;
    this.#input = h("input", {
      class: "input", type: "search", value: last,
      "aria-label": "Search", placeholder: "Search what is on this device",
      autocomplete: "off", spellcheck: "false", enterkeyhint: "search",
    });
    this.#input.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#search(), PAUSE_MS);
    });
    this.element = h("div", { class: "conversation" },
      paneHead(back, h("h1", { class: "visually-hidden" }, "Search"),
        h("div", { class: "search-field", role: "search" }, this.#input)),
      h("div", { class: "scroll", tabindex: "-1" },
        h("div", { class: "search-results" }, this.#say, this.#results)));
    this.#search();
  }

  focus() {
    this.#input.focus();
    this.#input.select();
  }

  close() {
    clearTimeout(this.#timer);
    this.#stop.abort();
  }

  async #search() {
    this.#stop.abort();
    this.#stop = new AbortController();
    const { signal } = this.#stop;
    last = this.#input.value;
    const query = last.trim();
    this.#results.replaceChildren();
    if (!query) {
      setText(this.#say, "Words from any conversation that this device has opened.");
      return;
    }
    setText(this.#say, "Searching…");
    try {
      const count = await this.#show(query, signal);
      if (!signal.aborted) setText(this.#say, told(count));
    } catch (error) {
      if (!signal.aborted) setText(this.#say, sentence(error));
    }
  }

  async #show(query, signal) {
    let count = 0;
    for await (const hit of this.#device.search(query, { signal })) {
      if (signal.aborted) return count;
      this.#results.append(this.#item(hit));
      count += 1;
      if (count >= MOST) return count;
    }
    return count;
  }

  #item(hit) {
    const { session, snippet, time } = hit;
    const who = [session.agent, session.title].filter(Boolean).join(" · ");
    const link = h("a", { class: "found", href: `/s/${session.id}` },
      h("span", { class: "found-who" }, h("span", {}, who), h("time", {}, when(time))),
      h("span", {}, snippet.map((part) => (part.hit ? h("mark", {}, part.text) : part.text))));
    link.addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      this.#open(hit);
    });
    return h("li", {}, link);
  }
}

function told(count) {
  if (!count) return "Nothing found on this device.";
  if (count >= MOST) return `The first ${MOST} places`;
  return count === 1 ? "One place" : `${count} places`;
}
