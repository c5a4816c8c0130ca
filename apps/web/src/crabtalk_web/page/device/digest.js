// The summary of a session for the list: its last line, the number of unread texts, and whether a
// turn is open. The numbers are stored; the line itself stays sealed.

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

  /**
   * Adds entries by number, up to `high`. Entries older than this device do not count as unread.
   */
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
    // A person who answers has read the conversation.
    if (role === "user") this.unread = 0;
  }
}

/** Returns the preview line of an entry. */
export function lineOf(ev) {
  if (ev.t === "file") return ev.name;
  const lines = (ev.text ?? "").split("\n").map((line) => line.trim());
  return lines.find((line) => line && !line.startsWith("```"))?.slice(0, 200) ?? "";
}
