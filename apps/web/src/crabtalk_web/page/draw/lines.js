// A line that is read from its beginning, in columns: a tab reaches to the next multiple of four,
// and may be consumed in parts.

export class Line {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.column = 0;
    this.isInTab = false; // part of the next tab was consumed
    this.look();
  }

  /** Finds the next visible character, and its indent from here. */
  look() {
    let at = this.at;
    let column = this.column;
    for (; at < this.text.length; at += 1) {
      const char = this.text[at];
      if (char === " ") column += 1;
      else if (char === "\t") column += 4 - (column % 4);
      else break;
    }
    this.next = at;
    this.nextColumn = column;
    this.indent = column - this.column;
    this.isBlank = at >= this.text.length;
  }

  get char() {
    return this.text[this.next];
  }

  /** Consumes all white space. */
  takeSpace() {
    this.at = this.next;
    this.column = this.nextColumn;
    this.isInTab = false;
    this.indent = 0;
  }

  /** Consumes white space and the given number of characters. */
  take(count) {
    this.takeSpace();
    this.at += count;
    this.column += count;
    this.look();
  }

  /** Consumes up to that many columns of white space. */
  takeColumns(count) {
    while (count > 0 && this.at < this.next) {
      const isTab = this.text[this.at] === "\t";
      const width = isTab ? 4 - (this.column % 4) : 1;
      this.column += Math.min(width, count);
      this.isInTab = isTab && width > count;
      if (!this.isInTab) this.at += 1;
      count -= width;
    }
    this.indent = this.nextColumn - this.column;
  }

  /** Returns the rest of the line, including the rest of a partly consumed tab. */
  remainder() {
    if (!this.isInTab) return this.text.slice(this.at);
    return " ".repeat(4 - (this.column % 4)) + this.text.slice(this.at + 1);
  }

  visible() {
    return this.text.slice(this.next);
  }
}
