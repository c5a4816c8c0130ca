// What this device keeps, in the browser's own database. Words are in it only as the relay has
// them, sealed; keys are the browser's, and give their bytes to nobody.

const NAME = "crabtalk";
const VERSION = 1;
const TABLES = {
  account: {}, // under "this": who we are
  sessions: { keyPath: "id" },
  marks: { keyPath: "id" }, // how far a session was read, and what is new in it
  spans: { keyPath: "id" }, // which messages of a session are here
  messages: { keyPath: ["session", "seq"] },
  drafts: { keyPath: "id" }, // what somebody began to write in a session
  outbox: { keyPath: "localId" },
  files: { keyPath: "ref" },
};

export class Store {
  /** Raises Error with a sentence where the browser keeps nothing. */
  static async open() {
    try {
      return new Store(await opened());
    } catch {
      throw new Error(
        "The browser keeps nothing for this page. Allow it to store data, or leave private mode.",
      );
    }
  }

  /** Whether it was wiped, from here or from another tab. */
  isGone = false;

  constructor(database) {
    this.database = database;
    // A tab that wipes everything would wait for this one.
    database.onversionchange = () => this.#leave();
  }

  get = (table, key) => this.#one(table, "readonly", (rows) => rows.get(key));
  all = (table) => this.#one(table, "readonly", (rows) => rows.getAll());
  put = (table, row, key) => this.#one(table, "readwrite", (rows) => rows.put(row, key));
  putSafely = (table, row) => this.#one(table, "readwrite", (rows) => rows.put(row), "strict");
  delete = (table, key) => this.#one(table, "readwrite", (rows) => rows.delete(key));

  /** Rows with keys from `low` to `high`, both included. */
  range(table, low, high) {
    return this.#one(table, "readonly", (rows) => rows.getAll(IDBKeyRange.bound(low, high)));
  }

  /** All or nothing: `work` is given the tables, and may only wait for their requests. */
  async change(tables, work, durability = "relaxed") {
    const transaction = this.database.transaction(tables, "readwrite", { durability });
    const done = finished(transaction);
    const rows = Object.fromEntries(tables.map((name) => [name, transaction.objectStore(name)]));
    await Promise.all([work(rows), done]);
  }

  /** Everything is gone when it returns. */
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
    // A write counts when it is on disk, not when it was asked for.
    if (mode === "readwrite") await finished(transaction);
    return answer;
  }
}

/** What a request of the database gives. */
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
