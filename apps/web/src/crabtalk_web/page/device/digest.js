// What the list says of a session without reading all of it: its last line, how much is new, and
// whether a turn is open. Kept as numbers; the line itself stays sealed where it is.

export class Digest {
  #tasks = new Set();

  constructor(kept) {
    this.isNew = !kept;
    const { seen = 0, counted = 0, unread = 0, previewSeq = 0, isWorking = false } = kept ?? {};
    Object.assign(this, { seen, counted, unread, previewSeq, isWorking, preview: "" });
  }

  get plain() {
    const { seen, counted, unread, previewSeq, isWorking } = this;
    return { seen, counted, unread, previewSeq, isWorking };
  }

  /** Entries by number, up to `high`. What was there before this device was is not new. */
  take(entries, high) {
    if (this.isNew) this.seen = high;
    this.isNew = false;
    for (const entry of entries) {
      if (entry.seq > this.counted) this.#count(entry);
    }
    this.counted = Math.max(this.counted, high);
  }

  look() {
    const isNews = this.unread > 0 || this.seen < this.counted;
    this.seen = this.counted;
    this.unread = 0;
    return isNews;
  }

  #count({ seq, role, subagent, ev }) {
    if (ev.t === "turn-start") this.isWorking = true;
    if (ev.t === "turn-end") this.isWorking = false;
    if (ev.t === "tool-call-start") this.#tasks.add(ev.args.sessionSubagent);
    const isSaid = ev.t === "text" && !ev.thinking && ev.text.trim() && !this.#tasks.has(subagent);
    if (!isSaid && ev.t !== "file") return;
    this.previewSeq = seq;
    this.preview = lineOf(ev);
    if (role === "agent" && seq > this.seen) this.unread += 1;
    // Whoever answers has read what they answer.
    if (role === "user") this.unread = 0;
  }
}

/** The line that stands for an entry. */
export function lineOf(ev) {
  if (ev.t === "file") return ev.name;
  const lines = (ev.text ?? "").split("\n").map((line) => line.trim());
  return lines.find((line) => line && !line.startsWith("```"))?.slice(0, 200) ?? "";
}
