// The device's IndexedDB. Messages are stored sealed, exactly as at the relay; keys are
// non-extractable CryptoKeys.

const NAME = "crabtalk";
const VERSION = 1;
const TABLES = {
  account: {}, // under "this": the account
  sessions: { keyPath: "id" },
  marks: { keyPath: "id" }, // the read position of a session, and its unread count
  spans: { keyPath: "id" }, // which messages of a session are stored
  messages: { keyPath: ["session", "seq"] },
  drafts: { keyPath: "id" }, // the draft of a session
  outbox: { keyPath: "localId" },
  files: { keyPath: "ref" },
};

export class Store {
  /** Raises Error with a sentence if the browser has no storage. */
  static async open() {
    try {
      return new Store(await opened());
    } catch {
      throw new Error(
        "The browser keeps nothing for this page. Allow it to store data, or leave private mode.",
      );
    }
  }

  /** Whether it was wiped, by this tab or another. */
  isGone = false;

  constructor(database) {
    this.database = database;
    // Close at once, so that a tab that wipes everything need not wait.
    database.onversionchange = () => this.#leave();
  }

  get = (table, key) => this.#one(table, "readonly", (rows) => rows.get(key));
  all = (table) => this.#one(table, "readonly", (rows) => rows.getAll());
  put = (table, row, key) => this.#one(table, "readwrite", (rows) => rows.put(row, key));
  putSafely = (table, row) => this.#one(table, "readwrite", (rows) => rows.put(row), "strict");
  delete = (table, key) => this.#one(table, "readwrite", (rows) => rows.delete(key));

  /** Returns the rows with keys from `low` to `high`, both included. */
  range(table, low, high) {
    return this.#one(table, "readonly", (rows) => rows.getAll(IDBKeyRange.bound(low, high)));
  }

  /** Runs `work` in one transaction. `work` gets the tables, and may only await their requests. */
  async change(tables, work, durability = "relaxed") {
    const transaction = this.database.transaction(tables, "readwrite", { durability });
    const done = finished(transaction);
    const rows = Object.fromEntries(tables.map((name) => [name, transaction.objectStore(name)]));
    await Promise.all([work(rows), done]);
  }

  /** Deletes everything before it returns. */
  async wipe() {
    this.#leave();
    await result(indexedDB.deleteDatabase(NAME));
  }

  #leave() {
    this.isGone = true;
    this.database.close();
  }

  async #one(table, mode, ask, durability = "relaxed") {
    const transaction = this.database.transaction(table, mode, { durability });
    const answer = result(ask(transaction.objectStore(table)));
    // A write counts when it is on disk, not when it was requested.
    if (mode === "readwrite") await finished(transaction);
    return answer;
  }
}

/** Returns the result of a database request. */
export function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function finished(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser gave up"));
  });
}

function opened() {
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => {
    for (const [name, options] of Object.entries(TABLES)) {
      request.result.createObjectStore(name, options);
    }
  };
  return result(request);
}
