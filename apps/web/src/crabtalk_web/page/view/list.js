// The list of conversations: name, last line and unread count.

import { arrange, h, setText } from "../draw/dom.js";
import { plainLine } from "../draw/markdown.js";
import { when } from "../draw/time.js";
import { icon } from "./icons.js";
import { WaitingList } from "./waiting.js";

const MINUTE_MS = 60_000;

export class ListView {
  #device;
  #items = new Map();
  #nav = h("nav", { class: "scroll list", "aria-label": "Conversations" });
  #list = h("ul", { class: "plain" });
  #waiting = new WaitingList();
  #current = "";
  #frame = 0;
  #timer = 0;
  #soon = () => {
    this.#frame ||= requestAnimationFrame(() => this.draw());
  };

  constructor(device) {
    this.#device = device;
    this.element = h("div", { class: "side" },
      h("header", { class: "head" },
        h("h1", {}, "crabtalk"),
        tool("search", "Search", "/search"),
        tool("settings", "Settings", "/settings")),
      this.#waiting.element, this.#nav);
    device.addEventListener("change", this.#soon);
    this.#timer = setInterval(this.#soon, MINUTE_MS);
    this.draw();
  }

  close() {
    this.#device.removeEventListener("change", this.#soon);
    clearInterval(this.#timer);
    cancelAnimationFrame(this.#frame);
  }

  /** The id of the open conversation; "" for none. */
  set current(id) {
    this.#current = id;
    this.draw();
  }

  /** Returns the id of the conversation `step` positions below the open one. */
  neighbour(step) {
    const open = this.#device.sessions.filter((session) => !session.isSealed);
    const at = open.findIndex((session) => session.id === this.#current);
    const next = at < 0 ? open[0] : open[at + step];
    return next?.id;
  }

  reveal(id) {
    this.#items.get(id)?.element.scrollIntoView({ block: "nearest" });
  }

  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const { sessions, connection } = this.#device;
    this.#waiting.draw(sessions);
    if (!sessions.length) {
      const isComing = connection.state === "connecting";
      this.#nav.replaceChildren(isComing ? skeleton() : empty());
      return;
    }
    if (!this.#list.isConnected) this.#nav.replaceChildren(this.#list);
    const hosts = new Set(sessions.map((session) => session.host));
    const there = new Set(sessions.map((session) => session.id));
    for (const id of this.#items.keys()) if (!there.has(id)) this.#items.delete(id);
    arrange(this.#list, sessions.map((session) => {
      const item = this.#items.get(session.id) ?? newItem(session);
      this.#items.set(session.id, item);
      const isCurrent = session.id === this.#current;
      drawItem(item, session, { isCurrent, hasHosts: hosts.size > 1 });
      return item.element;
    }));
  }
}

function tool(name, label, href) {
  return h("a", { class: "icon-button", href, "aria-label": label, title: label }, icon(name));
}

function newItem(session) {
  const parts = {
    mark: h("span", { class: "item-mark", "aria-hidden": "true" }),
    name: h("span", { class: "item-name" }),
    title: h("span", { class: "item-title" }),
    time: h("time", { class: "item-time" }),
    preview: h("span", { class: "item-preview" }),
    state: h("span", { class: "item-state" }),
    count: h("span", {}),
  };
  const hidden = h("span", { class: "visually-hidden" }, " new");
  parts.badge = h("span", { class: "badge" }, parts.count, hidden);
  const lines = [
    parts.mark,
    h("span", { class: "item-line" },
      h("span", { class: "item-who" }, parts.name, " ", parts.title), " ", parts.time),
    " ",
    h("span", { class: "item-line" },
      h("span", { class: "item-last" }, parts.state, " ", parts.preview), " ", parts.badge),
  ];
  const link = session.isSealed
    ? h("div", { class: "item is-sealed" }, lines)
    : h("a", { class: "item", href: `/s/${session.id}` }, lines);
  return { element: h("li", {}, link), link, last: "", line: "", ...parts };
}

function drawItem(item, session, { isCurrent, hasHosts }) {
  const name = session.isSealed ? "Sealed conversation" : session.agent;
  if (!session.isSealed) item.mark.dataset.letter = [...session.agent][0]?.toUpperCase() ?? "";
  else if (!item.mark.firstChild) item.mark.append(icon("key"));
  setText(item.name, name);
  setText(item.title, [session.title, hasHosts && session.host].filter(Boolean).join(" · "));
  setText(item.time, session.updatedAt ? when(session.updatedAt) : "");
  // Most of a long list is unchanged, and parsing its markdown again would exceed the frame.
  if (item.last !== session.preview) {
    item.last = session.preview;
    item.line = plainLine(session.preview);
  }
  setText(item.preview, previewOf(session, item.line));
  const state = stateOf(session);
  setText(item.state, state.text);
  item.state.dataset.state = state.kind;
  item.badge.hidden = !session.unread;
  setText(item.count, session.unread > 99 ? "99+" : String(session.unread || ""));
  item.link.classList.toggle("is-unread", session.unread > 0);
  item.link.classList.toggle("is-away", !session.isActive);
  if (isCurrent) item.link.setAttribute("aria-current", "page");
  else item.link.removeAttribute("aria-current");
}

function previewOf(session, line) {
  if (session.isSealed) return "Sealed for another account: it cannot be read here.";
  return line || (session.seq ? "" : "Nothing said yet");
}

function stateOf(session) {
  if (session.isSealed) return { kind: "", text: "" };
  if (session.questions.length) return { kind: "asks", text: "Asks you" };
  if (session.isWorking) return { kind: "works", text: "Working" };
  return { kind: "", text: "" };
}

function skeleton() {
  const line = (name) => h("div", { class: `skeleton ${name}` });
  return h("div", { class: "list-skeleton", role: "status", "aria-label": "Loading conversations" },
    [1, 2, 3, 4].map(() => h("div", { class: "item-skeleton" }, line("short"), line("long"))));
}

function empty() {
  return h("div", { class: "empty" },
    h("p", {}, "No conversations yet."),
    h("p", { class: "small" }, "Where your agents run, start ",
      h("code", { class: "command" }, "crabtalk-web up"),
      " and open the link it prints."));
}
