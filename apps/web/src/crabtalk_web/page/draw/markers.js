// Markers at line starts and ends: list items, indented code and heading marks.

const BULLET = /^[*+-]/;
const NUMBER = /^(\d{1,9})([.)])/;

/** Whether indented code continues in this line; then its indent is consumed. */
export function indentedGoesOn(line) {
  if (line.isBlank) {
    line.takeColumns(4);
    return true;
  }
  if (line.indent < 4) return false;
  line.takeColumns(4);
  return true;
}

/** Returns the text of a finished code block. */
export function closeCode(code) {
  const lines = code.lines;
  if (!code.fence) {
    while (lines.length && !lines[lines.length - 1].trim()) lines.pop();
  }
  code.text = lines.map((line) => `${line}\n`).join("");
}

/** Returns a heading without its closing marks. */
export function withoutClosing(text) {
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end -= 1;
  if (end === 0) return "";
  return end < text.length && /[ \t]/.test(text[end - 1]) ? text.slice(0, end).trimEnd() : text;
}

/** Returns the bullet or number that begins a list item, or null. */
export function markerOf(line, isInParagraph) {
  const text = line.text.slice(line.next, line.next + 12);
  const bullet = BULLET.exec(text);
  const number = bullet === null ? NUMBER.exec(text) : null;
  const found = bullet ?? number;
  if (found === null) return null;
  const after = text[found[0].length];
  if (after !== undefined && after !== " " && after !== "\t") return null;
  const isEmpty = !line.text.slice(line.next + found[0].length).trim();
  if (isInParagraph && (isEmpty || (number !== null && Number(number[1]) !== 1))) return null;
  const first = number === null ? null : Number(number[1]);
  return { length: found[0].length, mark: number === null ? found[0] : number[2], first };
}

/** Consumes the space between a marker and its text, and returns its width. */
export function widthAfter(line) {
  if (line.isBlank) {
    line.takeSpace();
    return 1;
  }
  const width = line.indent > 4 ? 1 : line.indent;
  line.takeColumns(width);
  return width;
}
