// Something that can be watched: it says that it changed, and once however much did at a time.

export class Observable extends EventTarget {
  #isTold = true;

  /** Has `change` dispatched before the browser does anything else. */
  changed() {
    if (!this.#isTold) return;
    this.#isTold = false;
    queueMicrotask(() => {
      this.#isTold = true;
      this.dispatchEvent(new Event("change"));
    });
  }
}
