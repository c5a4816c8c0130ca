// Marks at the beginning and the end of lines: which of them begin an item of a list, where its
// text stands, and what of a heading or of code is no text.

const BULLET = /^[*+-]/;
const NUMBER = /^(\d{1,9})([.)])/;

/** Does code without a fence go on in this line? Its indent is taken then. */
export function indentedGoesOn(line) {
  if (line.isBlank) {
    line.takeColumns(4);
    return true;
  }
  if (line.indent < 4) return false;
  line.takeColumns(4);
  return true;
}

/** The text of a block of code that is over. */
export function closeCode(code) {
  const lines = code.lines;
  if (!code.fence) {
    while (lines.length && !lines[lines.length - 1].trim()) lines.pop();
  }
  code.text = lines.map((line) => `${line}\n`).join("");
}

/** A heading without the marks that may close it. */
export function withoutClosing(text) {
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end -= 1;
  if (end === 0) return "";
  return end < text.length && /[ \t]/.test(text[end - 1]) ? text.slice(0, end).trimEnd() : text;
}

/** A bullet or a number at which an item begins, or null. */
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

/** Takes the space between a marker and its text; how wide that is. */
export function widthAfter(line) {
  if (line.isBlank) {
    line.takeSpace();
    return 1;
  }
  const width = line.indent > 4 ? 1 : line.indent;
  line.takeColumns(width);
  return width;
}
