// The head of a conversation: agent, machine, context usage, and the stop button.

import { h, setText } from "../draw/dom.js";
import { button, iconButton } from "./controls.js";
import { icon } from "./icons.js";

export class ConversationHead {
  #session;
  #name = h("h1", { class: "who-name" });
  #about = h("p", { class: "who-about" });
  #fill = h("span", { class: "usage-fill" });
  #percent = h("span", { class: "usage-text", "aria-hidden": "true" });
  #usage;
  #stop;
  #isStopping = false;

  constructor(session, { back, stop }) {
    this.#session = session;
    this.#usage = h("div", { class: "usage", role: "meter", "aria-label": "Context in use",
      "aria-valuemin": "0", "aria-valuemax": "100", hidden: true },
    h("span", { class: "usage-track" }, this.#fill), this.#percent);
    this.#stop = button([icon("stop"), "Stop"], stop, "small danger stop");
    this.element = h("header", { class: "head" },
      iconButton("back", "Back", back, { class: "icon-button only-narrow" }),
      h("div", { class: "who" }, this.#name, this.#about),
      this.#usage, this.#stop);
    this.draw();
  }

  draw() {
    const { agent, title, host, isActive, isWorking, usage } = this.#session;
    setText(this.#name, agent);
    setText(this.#about, [title, host, isActive ? "" : "away"].filter(Boolean).join(" · "));
    this.#stop.hidden = !isWorking && !this.#isStopping;
    this.#drawUsage(usage);
  }

  /** Shows that it is stopping; the turn's end arrives by itself. */
  async stopping(run) {
    this.#isStopping = true;
    this.#stop.setAttribute("aria-busy", "true");
    this.#stop.classList.add("is-busy");
    try {
      await run();
    } finally {
      this.#isStopping = false;
      this.#stop.removeAttribute("aria-busy");
      this.#stop.classList.remove("is-busy");
      this.draw();
    }
  }

  #drawUsage(usage) {
    this.#usage.hidden = !usage?.window;
    if (!usage?.window) return;
    const percent = Math.min(100, Math.round((usage.used / usage.window) * 100));
    const told = `${percent} % of ${usage.window.toLocaleString()} tokens`;
    this.#usage.setAttribute("aria-valuenow", String(percent));
    this.#usage.setAttribute("aria-valuetext", told);
    this.#usage.title = `Context in use: ${told}`;
    this.#usage.dataset.level = percent >= 80 ? "high" : "low";
    this.#fill.style.setProperty("width", `${percent}%`);
    setText(this.#percent, `${percent} %`);
  }
}
