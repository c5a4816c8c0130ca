// The application: which view is shown, and navigation between views.

import { arrange, h } from "../draw/dom.js";
import { ConnectionBar, revokedBar, updateBar } from "./connection.js";
import { ConversationView } from "./conversation.js";
import { joiningView } from "./joining.js";
import { ListView } from "./list.js";
import { listenForKeys, showKeys } from "./shortcuts.js";
import { pairingView } from "./pairing.js";
import { SearchView } from "./search.js";
import { startServiceWorker } from "./service.js";
import { settingsView } from "./settings.js";
import {
  failedView, lostView, missingView, nothingChosen, unsupportedView, waitingView,
} from "./states.js";
import { seedOf, welcomeView } from "./welcome.js";

const isFine = matchMedia("(pointer: fine)");
// Views that fill the page when the person has no account.
const ALONE = new Set(["join", "pair"]);

export class App {
  #device;
  #router;
  #list = null;
  #view = null;
  #shown = "";
  #machineKey = "";
  #invite = "";
  #seed = "";
  #hit = null;
  #bars = h("div", { class: "bars" });
  #pane = h("div", { class: "main", id: "pane", tabindex: "-1" });
  // One landmark for both panes, also if only one of them is shown.
  #main = h("main", { class: "panes" });

  constructor(device, router, fragment) {
    this.#device = device;
    this.#router = router;
    const given = new URLSearchParams(fragment);
    this.#machineKey = /^[\w-]+$/.exec(given.get("key") ?? "")?.[0] ?? "";
    this.#invite = given.get("invite") ?? "";
    if (router.route.view === "join") this.#seed = seedOf(`#${fragment}`);
  }

  start(root) {
    this.#router.addEventListener("change", () => this.#show({ isMoved: true }));
    this.#device.addEventListener("change", () => this.#changed());
    this.#bars.append(new ConnectionBar(this.#device).element, revokedBar(this.#device, leave));
    root.className = "shell";
    root.replaceChildren(skipLink(), this.#bars, this.#main);
    listenForKeys(this.#keys());
    this.#show({ isMoved: false });
    startServiceWorker((take) => this.#bars.append(updateBar(take))).catch(() => undefined);
  }

  // ── What is shown ────────────────────────────────────────────────────────────────────────────

  #show({ isMoved }) {
    const route = this.#router.route;
    const made = this.#device.stage === "ready" ? this.#inside(route) : this.#outside(route);
    if (!made) return;
    const { key, build } = made;
    if (key === this.#shown && !made.isAlways) return;
    this.#view?.close();
    this.#shown = key;
    this.#view = build();
    this.#pane.replaceChildren(this.#view.element);
    this.#name();
    if (isMoved || route.view === "search") this.#focus();
  }

  #outside(route) {
    this.#frame("alone");
    const { stage } = this.#device;
    if (stage === "unsupported") return { key: stage, build: () => unsupportedView() };
    if (stage === "failed") return { key: stage, build: () => failedView(this.#device.problem) };
    const flow = {
      isPairing: Boolean(this.#machineKey),
      invite: this.#invite,
      done: () => this.#entered(),
      join: (seed) => this.#join(seed),
    };
    if (route.view === "join" && this.#seed) return { key: "join", build: () => this.#joining() };
    return { key: "welcome", build: () => welcomeView(this.#device, flow) };
  }

  #inside(route) {
    const { view, id } = route;
    const isList = view === "list";
    this.#frame(ALONE.has(view) ? "alone" : isList ? "side" : "main");
    if (this.#list) this.#list.current = id ?? "";
    if (view === "conversation") return this.#conversation(id);
    const back = () => this.#router.back("/");
    const toList = () => this.#router.go("/");
    const views = {
      list: () => nothingChosen(this.#device),
      search: () => new SearchView(this.#device, { back, open: (hit) => this.#openHit(hit) }),
      settings: () => settingsView(this.#device, { back, out: leave }),
      join: () => this.#joining(),
      pair: () => pairingView(this.#device, { key: this.#machineKey, done: toList }),
      missing: () => missingView(),
    };
    // The placeholder text depends on whether there are conversations.
    const key = isList ? `list ${this.#device.sessions.length > 0}` : view;
    return { key, build: views[view] };
  }

  #conversation(id) {
    const session = this.#device.session(id);
    if (!session && this.#device.connection.state === "connecting") {
      return { key: `waiting ${id}`, build: () => waitingView() };
    }
    if (!session || session.isSealed) return { key: `lost ${id}`, build: () => lostView(session) };
    const hit = this.#hit;
    this.#hit = null;
    const options = { back: () => this.#router.back("/"), hit };
    return {
      key: `conversation ${id}`,
      isAlways: Boolean(hit),
      build: () => new ConversationView(this.#device, session, options),
    };
  }

  #joining() {
    return joiningView(this.#device, { seed: this.#seed, done: () => this.#entered() });
  }

  /** Frames the view: alone, or with the list beside it. */
  #frame(pane) {
    this.#main.dataset.pane = pane;
    const isAlone = pane === "alone";
    if (isAlone) this.#list?.close();
    if (isAlone) this.#list = null;
    else this.#list ??= new ListView(this.#device);
    const panes = isAlone ? [this.#pane] : [this.#list.element, this.#pane];
    arrange(this.#main, panes);
  }

  #changed() {
    // Conversations appear, disappear and get titles while the page is open.
    this.#show({ isMoved: false });
    this.#name();
  }

  #name() {
    const unread = this.#device.sessions.reduce((sum, session) => sum + (session.unread || 0), 0);
    const title = this.#view?.title;
    const name = [title, "crabtalk"].filter(Boolean).join(" · ");
    const shown = unread ? `(${unread}) ${name}` : name;
    if (document.title !== shown) document.title = shown;
  }

  #focus() {
    if (isFine.matches && this.#view.focus) this.#view.focus();
    else this.#pane.focus({ preventScroll: true });
  }

  // ── What leads from one to another ───────────────────────────────────────────────────────────

  #entered() {
    this.#seed = "";
    this.#shown = "";
    if (this.#machineKey) this.#router.go("/terminal/connect", { replace: true });
    else this.#router.go("/", { replace: true });
    this.#show({ isMoved: true });
  }

  #join(seed) {
    this.#seed = seed;
    this.#router.go("/join");
  }

  #openHit(hit) {
    this.#hit = hit;
    this.#router.go(`/s/${hit.session.id}`);
  }

  #keys() {
    const isIn = () => this.#device.stage === "ready";
    const step = (by) => () => {
      const id = isIn() && this.#list?.neighbour(by);
      if (!id) return false;
      this.#router.go(`/s/${id}`);
      this.#list.reveal(id);
      return true;
    };
    return {
      "/": () => isIn() && this.#router.go("/search"),
      "?": () => void showKeys(),
      j: step(1),
      k: step(-1),
      c: () => (this.#view?.focus ? this.#view.focus() : false),
      stop: () => (this.#view?.stop ? void this.#view.stop() : false),
      escape: () => this.#escape(),
    };
  }

  #escape() {
    const { view } = this.#router.route;
    if (view === "search" || view === "settings") this.#router.back("/");
    else if (this.#view?.leave) this.#view.leave();
    else return false;
    return true;
  }
}

/** The account's data is deleted; the page reloads so that nothing stays in memory. */
function leave() {
  location.replace("/");
}

function skipLink() {
  return h("a", { class: "button skip", href: "#pane", onclick: (event) => {
    event.preventDefault();
    document.getElementById("pane").focus();
  } }, "Skip to the conversation");
}
