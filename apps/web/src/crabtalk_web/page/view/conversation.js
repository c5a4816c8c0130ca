// A conversation: head, rows, live text, questions and composer. All changes are drawn once per
// frame, so that a finished text replaces its live version without flicker.

import { h, setText } from "../draw/dom.js";
import { plainLine } from "../draw/markdown.js";
import { day } from "../draw/time.js";
import { renderLive, renderRow, updateLive, updateRow } from "../rows/rows.js";
import { Composer } from "./composer.js";
import { button, spinner } from "./controls.js";
import { ConversationHead } from "./head.js";
import { DropTarget } from "./drop.js";
import { HistoryLine } from "./history.js";
import { icon } from "./icons.js";
import { announce, notify } from "./notices.js";
import { QuestionShelf } from "./questions.js";
import { openFile } from "./viewer.js";
import { RowWindow } from "./window.js";

// Older rows are loaded when the first one is this near, in view heights.
const FETCH_AHEAD = 4;

export class ConversationView {
  #session;
  #frame = 0;
  #live = null;
  #context;
  #heard = new Set();
  #openedAt = Date.now();
  #off = [];

  constructor(device, session, { back, hit = null }) {
    this.#session = session;
    this.title = session.title || session.agent;
    this.hit = hit;
    this.head = new ConversationHead(session, { back, stop: () => this.stop() });
    this.history = new HistoryLine(session);
    this.questions = new QuestionShelf(session);
    this.liveShelf = h("div", { class: "log-live" });
    this.working = h("p", { class: "working", hidden: true },
      spinner(), h("span", {}, "Working"));
    this.inner = h("div", { class: "log-inner" });
    this.log = h("div", {
      class: "scroll log", tabindex: "0",
      role: "log", "aria-live": "off", "aria-label": "Conversation",
    }, this.inner);
    const context = this.#context = {
      session, announce, openFile: (row) => openFile(session, row), copy: (text) => copy(text),
    };
    this.window = new RowWindow(this.log, this.history.line, {
      render: (row) => renderRow(row, context),
      update: (element, row) => updateRow(element, row, context),
      day: (row, before) => dayAbove(row, before),
    });
    const tail = h("div", { class: "log-tail" },
      this.liveShelf, this.questions.element, this.working);
    this.inner.append(this.history.empty, ...this.window.element, tail);
    this.window.watch(tail);
    this.pill = button("", () => this.window.toEnd(), "small pill", { hidden: true });
    this.composer = new Composer(device, session, { sent: () => this.window.toEnd() });
    this.element = h("div", { class: "conversation" }, this.head.element,
      h("div", { class: "log-frame" }, this.log, this.pill), this.composer.element);
    this.#off.push(new DropTarget(this.element, (files) => this.composer.attach(files)).off);
    this.#listen(session, "change", () => this.#soon());
    this.#listen(session, "live", () => this.#soon());
    this.#listen(this.window, "change", () => this.#scrolled());
    this.#listen(document, "visibilitychange", () => this.#seen());
    this.#open();
  }

  /** Stops the turn that is open. */
  async stop() {
    if (!this.#session.isWorking) return;
    try {
      await this.head.stopping(() => this.#session.abort());
      announce("Stopped.");
    } catch (error) {
      notify(`It could not be stopped: ${error.message}`);
    }
  }

  focus() {
    this.composer.focus();
  }

  /** From writing to reading: keys then scroll the page. */
  leave() {
    this.log.focus();
  }

  close() {
    cancelAnimationFrame(this.#frame);
    for (const off of this.#off) off();
    this.window.close();
    this.composer.close();
    this.#session.close();
  }

  async #open() {
    this.draw();
    try {
      await this.#session.open();
    } catch (error) {
      notify(`This conversation could not be opened: ${error.message}`);
    }
    for (const row of this.#session.story.rows) this.#heard.add(row.id);
    this.draw();
    this.#seen();
    if (this.hit) await this.#find(this.hit);
  }

  /** Shows a search hit, which may be far up. */
  async #find({ rowIds, seq }) {
    await this.#session.loadTo(seq);
    this.draw();
    const entry = rowIds.map((id) => this.window.reveal(id)).find(Boolean);
    if (!entry) return;
    entry.classList.add("is-found");
    setTimeout(() => entry.classList.remove("is-found"), 2400);
  }

  #listen(target, name, handle) {
    target.addEventListener(name, handle);
    this.#off.push(() => target.removeEventListener(name, handle));
  }

  #soon() {
    this.#frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const session = this.#session;
    this.head.draw();
    this.history.draw();
    this.#drawLive(session.live);
    this.questions.draw();
    this.working.hidden = !isSilentlyWorking(session);
    const { hasOlder, loaded, total } = session.history;
    this.window.show(session.story.rows, hasOlder && loaded ? (total - loaded) / loaded : 0);
    this.#drawPill();
    this.#sayNew(session.story.rows);
    this.#fetchOlder();
    this.#seen();
  }

  #drawLive(live) {
    if (!live?.text) {
      this.liveShelf.replaceChildren();
      this.#live = null;
    } else if (this.#live) {
      updateLive(this.#live, live, this.#context);
    } else {
      this.#live = renderLive(live, this.#context);
      this.liveShelf.replaceChildren(this.#live);
    }
  }

  #drawPill() {
    const { isFollowing, newRows } = this.window;
    const isAsked = this.#session.questions.length > 0;
    // It must not cover a question that is in view.
    this.pill.hidden = isFollowing || (isAsked && isInView(this.questions.element, this.log));
    if (this.pill.hidden) return;
    const text = isAsked ? "A question waits" : newRows ? `${newRows} new` : "Newest";
    if (this.pill.textContent !== text) this.pill.replaceChildren(icon("down"), text);
  }

  #scrolled() {
    this.#drawPill();
    this.#fetchOlder();
    this.#seen();
  }

  #fetchOlder() {
    const { history } = this.#session;
    const isNear = this.window.distanceFromTop < this.log.clientHeight * FETCH_AHEAD;
    if (!isNear || history.state !== "idle" || !history.hasOlder || !this.log.clientHeight) return;
    if (!this.#session.story.rows.length) return;
    this.#session.loadOlder().catch(() => undefined);
  }

  #seen() {
    const isLookedAt = document.visibilityState === "visible" && this.window.isFollowing;
    if (isLookedAt && this.#session.unread) this.#session.seen();
  }

  /** Screen readers announce complete answers as they arrive, and no older ones. */
  #sayNew(rows) {
    for (let index = rows.length - 1; index >= 0 && index > rows.length - 20; index -= 1) {
      const row = rows[index];
      if (this.#heard.has(row.id)) break;
      this.#heard.add(row.id);
      if (row.time < this.#openedAt || row.kind !== "text" || row.thinking) continue;
      announce(`${row.speaker?.name ?? this.#session.agent}: ${plainLine(row.text)}`);
    }
  }
}

/** Shown if nothing else indicates activity. */
function isSilentlyWorking({ isWorking, live, questions, story }) {
  const isRunning = (row) => row.kind === "tool" && row.state === "running";
  const isShown = story.rows.slice(-8).some(isRunning);
  return isWorking && !isShown && !live && !questions.length;
}

function isInView(element, scroller) {
  const [inner, outer] = [element.getBoundingClientRect(), scroller.getBoundingClientRect()];
  return inner.top < outer.bottom && inner.bottom > outer.top;
}

/** Returns the day if it differs from that of the row before. */
function dayAbove(row, before) {
  const date = ({ time }) => new Date(time).toDateString();
  return before && date(before) === date(row) ? "" : day(row.time);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied.");
  } catch {
    notify("The browser did not let this be copied.");
  }
}
