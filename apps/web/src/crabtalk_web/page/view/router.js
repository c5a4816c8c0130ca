// The router: maps addresses to views, and navigates without reloading the page. The fragment is
// read once when the page opens and removed at once: it may be a key, and addresses are copied,
// kept in histories and seen by others.

const VIEWS = [
  [/^\/$/, () => ({ view: "list" })],
  [/^\/s\/([\w-]+)$/, (id) => ({ view: "conversation", id })],
  [/^\/search$/, () => ({ view: "search" })],
  [/^\/settings$/, () => ({ view: "settings" })],
  [/^\/join$/, () => ({ view: "join" })],
  [/^\/terminal\/connect$/, () => ({ view: "pair" })],
];

/** @returns {{view: string, id?: string}} "missing" for an unknown path */
export function routeOf(path) {
  for (const [pattern, route] of VIEWS) {
    const found = pattern.exec(path);
    if (found) return route(...found.slice(1));
  }
  return { view: "missing" };
}

export function takeFragment() {
  const fragment = location.hash.slice(1);
  if (location.hash) history.replaceState(history.state, "", location.pathname + location.search);
  return fragment;
}

export class Router extends EventTarget {
  constructor() {
    super();
    addEventListener("popstate", () => this.#changed());
    document.addEventListener("click", (event) => this.#follow(event));
  }

  get route() {
    return routeOf(location.pathname);
  }

  /**
   * @param {string} path
   * @param {{replace?: boolean}} options
   */
  go(path, { replace = false } = {}) {
    if (path === location.pathname) return;
    if (replace) history.replaceState({ ours: true }, "", path);
    else history.pushState({ ours: true }, "", path);
    this.#changed();
  }

  /** Goes back if that stays in the page; else to the parent view. */
  back(path) {
    if (history.state?.ours) history.back();
    else this.go(path, { replace: true });
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }

  #follow(event) {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey) return;
    if (event.shiftKey || event.altKey) return;
    const link = event.target.closest?.("a[href]");
    if (!link || link.origin !== location.origin) return;
    if (link.target || link.hasAttribute("download")) return;
    if (link.hash && link.pathname === location.pathname) return;
    event.preventDefault();
    this.go(link.pathname);
  }
}
