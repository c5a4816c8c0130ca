// The relay's HTTP API; always the relay that served this page.

import { AwayError, RefusedError } from "./errors.js";

const PATIENCE = 30_000;
// A transfer may take long, as long as some bytes arrive.
const SILENCE = 60_000;

export class Http {
  /** Called when the relay does not know our token. */
  onRevoked = () => {};

  constructor(token = "", client = "web") {
    this.token = token;
    this.client = client;
  }

  get headers() {
    const told = { "X-Happy-Client": this.client };
    return this.token ? { ...told, Authorization: `Bearer ${this.token}` } : told;
  }

  /**
   * Returns the relay's answer. Raises AwayError, RefusedError, and the reason `signal` was aborted
   * with.
   */
  async ask(method, path, body, { signal, patience = PATIENCE } = {}) {
    const headers = { ...this.headers, "Content-Type": "application/json" };
    const until = AbortSignal.timeout(patience);
    const either = signal ? AbortSignal.any([signal, until]) : until;
    const request = { method, headers, signal: either, cache: "no-store" };
    if (body !== undefined) request.body = JSON.stringify(body);
    let response, told;
    try {
      response = await fetch(path, request);
      told = await response.json();
    } catch {
      signal?.throwIfAborted();
      // An answer that is not JSON comes from a proxy in front of a relay that is away.
      throw new AwayError();
    }
    if (!response.ok) throw this.#refusal(response.status, told);
    if (typeof told !== "object" || told === null) throw new AwayError();
    return told;
  }

  get = (path, options) => this.ask("GET", path, undefined, options);
  post = (path, body, options) => this.ask("POST", path, body, options);
  delete = (path, options) => this.ask("DELETE", path, undefined, options);

  /** Uploads sealed bytes to an address of the relay. `onProgress` gets a fraction from 0 to 1. */
  upload(url, bytes, { signal, onProgress = () => {} } = {}) {
    // Only XMLHttpRequest reports upload progress.
    const request = new XMLHttpRequest();
    return new Promise((resolve, reject) => {
      const away = () => reject(signal?.aborted ? signal.reason : new AwayError());
      request.open("PUT", ownPath(url));
      for (const [name, value] of Object.entries(this.headers)) {
        request.setRequestHeader(name, value);
      }
      request.setRequestHeader("Content-Type", "application/octet-stream");
      const quiet = watchdog(() => request.abort());
      request.upload.onprogress = ({ loaded }) => {
        quiet.heard();
        onProgress(loaded / bytes.length);
      };
      request.onload = () => {
        if (request.status < 300) resolve();
        else reject(this.#refusal(request.status, parsed(request.responseText)));
      };
      request.onerror = request.onabort = away;
      request.onloadend = () => quiet.stop();
      signal?.addEventListener("abort", () => request.abort(), { once: true });
      request.send(bytes);
    });
  }

  /** Downloads sealed bytes from an address of the relay; `size` is the expected number. */
  async download(url, { size, signal, onProgress = () => {} }) {
    const stop = new AbortController();
    const either = signal ? AbortSignal.any([signal, stop.signal]) : stop.signal;
    const quiet = watchdog(() => stop.abort());
    try {
      const options = { headers: this.headers, signal: either, cache: "no-store" };
      const response = await fetch(ownPath(url), options);
      if (!response.ok) throw this.#refusal(response.status, parsed(await response.text()));
      const [pieces, reader] = [[], response.body.getReader()];
      let count = 0;
      for (let got = await reader.read(); !got.done; got = await reader.read()) {
        quiet.heard();
        pieces.push(got.value);
        count += got.value.length;
        onProgress(Math.min(1, count / (size || count)));
      }
      return new Uint8Array(await new Blob(pieces).arrayBuffer());
    } catch (error) {
      if (error instanceof RefusedError) throw error;
      signal?.throwIfAborted();
      throw new AwayError();
    } finally {
      quiet.stop();
    }
  }

  #refusal(status, told) {
    if (status === 401 && this.token) this.onRevoked();
    const message = told?.message ?? told?.error ?? `The relay answered ${status}. Try again.`;
    return new RefusedError(status, String(message), String(told?.code ?? ""));
  }
}

/** The relay may have another public URL, but its paths are on this page's origin. */
function ownPath(url) {
  return new URL(url, location.origin).pathname;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function watchdog(bite) {
  let timer = setTimeout(bite, SILENCE);
  return {
    heard() {
      clearTimeout(timer);
      timer = setTimeout(bite, SILENCE);
    },
    stop: () => clearTimeout(timer),
  };
}
