// An object that can be observed: dispatches `change` once for any number of changes at a time.

export class Observable extends EventTarget {
  #isTold = true;

  /** Dispatches `change` before the browser does anything else. */
  changed() {
    if (!this.#isTold) return;
    this.#isTold = false;
    queueMicrotask(() => {
      this.#isTold = true;
      this.dispatchEvent(new Event("change"));
    });
  }
}
