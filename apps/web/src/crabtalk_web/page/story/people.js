// Messages of people: text with the files that were sent before it, and unsent messages. A row
// stays the same object from the moment the person presses Enter.

/** Creates the row of a file. */
export function fileRow(id, time, role, ev, speaker) {
  const { ref, name, size, mimeType, image } = ev;
  return { kind: "file", id, time, revision: 1, role, ref, name, size, mimeType, image, speaker };
}

export function userRow(id, time, text) {
  return {
    kind: "user",
    id,
    time,
    revision: 1,
    text,
    files: [],
    state: "sent",
    problem: "",
    progress: null,
  };
}

/** Text and files of people's devices, in the order of their numbers. */
export class People {
  #said = []; // {seq, entry, row}: a file's row is its own, listed in `files` of another
  #files = new Map();

  add(entry, row) {
    this.#said.push({ seq: entry.seq, entry, row });
  }

  /** Returns the one row of a file, whether it is unsent or has come back from the relay. */
  file(id, make) {
    const known = this.#files.get(id);
    if (known) return known;
    const made = make();
    this.#files.set(id, made);
    return made;
  }

  /** Assigns files to texts: `[{row, files}]`; also those without a text yet. */
  sorted() {
    this.#said.sort((a, b) => a.seq - b.seq);
    const [groups, loose] = [[], []];
    for (const one of this.#said) {
      if (one.row.kind === "file") {
        loose.push(one);
      } else {
        groups.push({ row: one.row, files: loose.splice(0).map((file) => file.row) });
      }
    }
    return { groups, loose };
  }

  /** Returns those between two numbers, both included. */
  between(low, high) {
    return this.#said.filter(({ seq }) => low <= seq && seq <= high);
  }
}
