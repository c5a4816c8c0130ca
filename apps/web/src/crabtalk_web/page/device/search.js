// Searches what is on this device. Nothing is sent anywhere, and opened text stays in memory only.

const AROUND = 40;
// Characters of opened text that are kept between searches.
const REMEMBERED = 24_000_000;

export class Search {
  #blocks = new WeakMap(); // by session: opened blocks, by their first number
  #size = 0;

  /**
   * Yields hits in all sessions: sessions with the latest activity first, and the latest hits of
   * each first.
   */
  async *find(sessions, query, { signal } = {}) {
    const words = query.toLocaleLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return;
    for (const session of sessions) {
      if (session.isSealed) continue;
      for await (const texts of this.#textsOf(session)) {
        signal?.throwIfAborted();
        for (const { id, seq, time, text } of texts) {
          const snippet = snippetOf(text, words);
          if (snippet) yield { session, rowIds: [id], seq, snippet, time };
        }
      }
    }
  }

  /** Opens blocks in advance, with `pause` between them, so that the first search is fast. */
  async prepare(sessions, pause) {
    for (const session of sessions) {
      if (session.isSealed) continue;
      for await (const texts of this.#textsOf(session)) {
        if (this.#size > REMEMBERED / 2) return;
        if (texts.isFresh) await pause();
      }
    }
  }

  async *#textsOf(session) {
    const known = this.#blocks.get(session) ?? new Map();
    this.#blocks.set(session, known);
    for await (const { low, high } of session.blocks()) {
      const there = known.get(low);
      if (there?.high === high) {
        yield there.texts;
        continue;
      }
      const texts = (await session.entries(low, high)).reverse().map(foundIn).filter(Boolean);
      this.#remember(known, low, high, texts);
      yield Object.assign([...texts], { isFresh: true });
    }
  }

  #remember(known, low, high, texts) {
    const size = texts.reduce((sum, { text }) => sum + text.length, 0);
    const before = known.get(low)?.size ?? 0;
    if (this.#size - before + size > REMEMBERED) return;
    this.#size += size - before;
    known.set(low, { high, texts, size });
  }
}

function foundIn(entry) {
  const text = bare(textOf(entry.ev));
  return text && { id: rowIdOf(entry), seq: entry.seq, time: entry.time, text };
}

function textOf(ev) {
  if (ev.t === "text" || ev.t === "service") return ev.text;
  if (ev.t === "file") return ev.name;
  if (ev.t === "tool-call-start") return ev.description || ev.title;
  return "";
}

/** Removes markdown marks: line prefixes and emphasis. */
function bare(text) {
  return text.replace(/^ {0,3}(#{1,6} |[-*+>] |```.*$)/gm, "").replace(/\*\*|`+/g, "");
}

// The story's row id of an entry.
const rowIdOf = ({ id, localId, seq }) => id || localId || `seq ${seq}`;

/** Returns an excerpt around the first matching word, with all matches marked; or null. */
export function snippetOf(text, words) {
  const low = text.toLocaleLowerCase();
  if (low.length !== text.length || !words.every((word) => low.includes(word))) return null;
  const first = Math.min(...words.map((word) => low.indexOf(word)));
  const start = Math.max(0, first - AROUND);
  const end = Math.min(text.length, first + 3 * AROUND);
  const parts = [];
  let at = start;
  while (at < end) {
    const hits = words.map((word) => [low.indexOf(word, at), word.length]);
    const [next, length] = hits.filter(([where]) => where >= 0 && where < end)
      .sort((a, b) => a[0] - b[0] || b[1] - a[1])[0] ?? [end, 0];
    if (next > at) parts.push({ text: flat(text.slice(at, next)), hit: false });
    if (length) parts.push({ text: flat(text.slice(next, next + length)), hit: true });
    at = next + length;
    if (!length) break;
  }
  if (start > 0) parts[0] = { ...parts[0], text: `…${parts[0].text}` };
  if (end < text.length) parts.push({ text: "…", hit: false });
  return parts;
}

const flat = (text) => text.replace(/\s+/g, " ");
