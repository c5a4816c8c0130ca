// The heights of rows: measured, or estimated from the average of their kind.

const GUESSES = { user: 84, text: 150, tool: 52, service: 40, file: 220, end: 44 };

export class Heights {
  #known = new Map();
  #sums = new Map();

  /** Records a measured height, replacing an earlier one. */
  learn(row, height) {
    const before = this.#known.get(row.id);
    if (before === height) return;
    this.#known.set(row.id, height);
    const sum = this.#sums.get(row.kind) ?? { height: 0, count: 0 };
    sum.height += height - (before ?? 0);
    if (before === undefined) sum.count += 1;
    this.#sums.set(row.kind, sum);
  }

  /** Another width changes all heights: only the averages are kept. */
  forget() {
    this.#known.clear();
    for (const sum of this.#sums.values()) {
      sum.height /= sum.count || 1;
      sum.count = Math.min(sum.count, 1);
    }
  }

  of(row) {
    const known = this.#known.get(row.id);
    if (known !== undefined) return known;
    const sum = this.#sums.get(row.kind);
    return sum?.count ? sum.height / sum.count : GUESSES[row.kind] ?? 60;
  }

  between(rows, start, end) {
    let height = 0;
    for (let index = start; index < end; index += 1) height += this.of(rows[index]);
    return height;
  }

  /** Returns the row at this distance from the top of the first one. */
  at(rows, distance) {
    let height = 0;
    for (let index = 0; index < rows.length; index += 1) {
      height += this.of(rows[index]);
      if (height > distance) return index;
    }
    return Math.max(0, rows.length - 1);
  }
}
