// The order of entries: by the agent's clock, and by number if two have the same time.
//
// Messages of people's devices have no such clock. Each is placed by its number, after the entry it
// follows, however wrong the device's clock is; so a new message is always last.

/** Numbers and times of the entries that have a time, by number. */
export class Clock {
  #marks = [];

  /** Adds new entries, by number. Returns the range of numbers whose places may have changed. */
  note(entries) {
    const fresh = entries.filter((entry) => entry.isTimed);
    if (!fresh.length) return { low: Infinity, high: -Infinity };
    const [first, last] = [fresh[0].seq, fresh.at(-1).seq];
    const isLater = !this.#marks.length || first > this.#marks.at(-1).seq;
    const low = this.#marks[firstAfter(this.#marks, first) - 1]?.seq ?? -Infinity;
    const high = this.#marks[firstAfter(this.#marks, last)]?.seq ?? Infinity;
    for (const { seq, time } of fresh) this.#marks.push({ seq, time });
    if (!isLater) this.#marks.sort((a, b) => a.seq - b.seq);
    return { low, high };
  }

  /** Returns the place of an entry: `{time, seq}`. */
  place({ seq, time, isTimed }) {
    if (isTimed) return { time, seq };
    const next = firstAfter(this.#marks, seq);
    const neighbour = this.#marks[next - 1] ?? this.#marks[next];
    return { time: neighbour?.time ?? 0, seq };
  }
}

export const compare = (a, b) => a.time - b.time || a.seq - b.seq;

/** Inserts `item` into a sorted list. `placeOf` returns an item's place. */
export function insert(list, item, placeOf) {
  const place = placeOf(item);
  let [low, high] = [0, list.length];
  if (high && compare(placeOf(list[high - 1]), place) <= 0) low = high;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (compare(placeOf(list[middle]), place) <= 0) low = middle + 1;
    else high = middle;
  }
  list.splice(low, 0, item);
}

export function remove(list, item) {
  const at = list.lastIndexOf(item);
  if (at >= 0) list.splice(at, 1);
}

function firstAfter(marks, seq) {
  let [low, high] = [0, marks.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (marks[middle].seq <= seq) low = middle + 1;
    else high = middle;
  }
  return low;
}
