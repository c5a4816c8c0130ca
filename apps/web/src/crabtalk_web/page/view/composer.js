// The composer: text and files to send. A draft stays with its conversation.

import { h, setText } from "../draw/dom.js";
import { Attachments } from "./attachments.js";
import { Completion } from "./completion.js";
import { iconButton } from "./controls.js";
import { ModeButton } from "./mode.js";
import { notify } from "./notices.js";

const isFine = matchMedia("(pointer: fine)");
const SAVE_MS = 300;

export class Composer {
  #device;
  #session;
  #sent;
  #timer = 0;
  #away = h("p", { class: "composer-note", hidden: true });
  #text;
  #send;
  #files;
  #input;
  #completion;
  #box;
  #mode;
  #draw = () => this.draw();

  constructor(device, session, { sent }) {
    this.#device = device;
    this.#session = session;
    this.#sent = sent;
    this.#text = h("textarea", {
      class: "composer-text", id: "message", rows: "1", "aria-label": "Message",
      placeholder: `Message ${session.agent}`, autocomplete: "off",
      enterkeyhint: isFine.matches ? "send" : "enter",
    });
    this.#input = h("input", { type: "file", multiple: true, hidden: true });
    const sending = { class: "icon-button composer-send", type: "submit" };
    this.#send = iconButton("send", "Send", null, sending);
    const attach = iconButton("attach", "Attach files", () => this.#input.click());
    this.#files = new Attachments(session, () => this.draw());
    this.#completion = new Completion(this.#text, (sign) => this.#choices(sign));
    this.#box = h("div", { class: "composer-box" }, this.#completion.element, this.#files.element,
      h("div", { class: "composer-line" }, attach, this.#input, this.#text, this.#send));
    this.#mode = new ModeButton(session);
    this.element = h("form", { class: "composer", "aria-label": "Write" }, this.#away, this.#box,
      this.#mode.element);
    this.#listen();
    this.#text.value = session.draft;
    session.addEventListener("change", this.#draw);
    this.draw();
  }

  focus() {
    this.#text.focus();
  }

  attach(files) {
    this.#files.add(files);
    this.focus();
  }

  close() {
    this.#save();
    this.#session.removeEventListener("change", this.#draw);
    this.#files.close();
  }

  draw() {
    this.#send.disabled = !this.#text.value.trim() && !this.#files.files.length;
    this.#grow();
    this.#drawNote();
    this.#mode.draw();
  }

  /** Returns why a message may not be read soon, or at all. */
  #drawNote() {
    const { isActive, host, continuedBy } = this.#session;
    const isAway = !isActive && this.#device.connection.state === "online";
    this.#away.hidden = !isAway && !continuedBy;
    this.#box.hidden = Boolean(continuedBy);
    if (continuedBy) {
      if (!this.#away.querySelector("a")) this.#away.replaceChildren(...movedOn(continuedBy));
    } else {
      const who = host || "The machine";
      setText(this.#away, `${who} is away. What you write reaches it when it is back.`);
    }
  }

  #listen() {
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#text.addEventListener("input", () => {
      this.draw();
      this.#completion.look();
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#save(), SAVE_MS);
    });
    this.#text.addEventListener("keydown", (event) => this.#key(event));
    this.#text.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      this.attach(files);
    });
    this.#input.addEventListener("change", () => {
      this.attach([...this.#input.files]);
      this.#input.value = "";
    });
  }

  #key(event) {
    if (event.isComposing || this.#completion.key(event) || event.key !== "Enter") return;
    const isCommand = event.ctrlKey || event.metaKey;
    if (!isCommand && (event.shiftKey || event.altKey || !isFine.matches)) return;
    event.preventDefault();
    this.#submit();
  }

  #submit() {
    const text = this.#text.value.trim();
    if (!text && !this.#files.files.length) return;
    try {
      this.#session.send(text, this.#files.take());
    } catch (error) {
      notify(error.message);
      return;
    }
    this.#text.value = "";
    this.#save();
    this.draw();
    this.#sent();
  }

  /** Guests are the other agents of the same machine. */
  #choices(sign) {
    const { agent, machine, commands } = this.#session;
    if (sign === "/") return (commands ?? []).map((name) => name.replace(/^\//, ""));
    const there = this.#device.sessions.filter((one) => !one.isSealed && one.machine === machine);
    return [...new Set(there.map((one) => one.agent))].filter((name) => name !== agent).sort();
  }

  #save() {
    clearTimeout(this.#timer);
    this.#session.keepDraft(this.#text.value);
  }

  #grow() {
    const { style } = this.#text;
    style.setProperty("height", "auto");
    if (this.#text.scrollHeight) style.setProperty("height", `${this.#text.scrollHeight}px`);
  }
}

function movedOn(id) {
  const there = h("a", { href: `/s/${id}` }, "Go to where it goes on");
  return ["This conversation was begun anew. ", there, "."];
}
