// Tables with pipes: a header row, a row of dashes with the column alignment, and data rows.

// A wider table is shown as text: it would be unreadable, and a short text could ask for millions
// of cells.
const WIDEST = 100;
// Short rows are padded with up to this many cells in total; after that they stay short.
const MOST_ADDED = 2000;

/** Returns a table that begins with these two lines, or null. */
export function tableFrom(heading, delimiters) {
  if (!heading.includes("|")) return null;
  if (!/^[-:| \t]+$/.test(delimiters)) return null;
  const marks = cells(delimiters, WIDEST + 1);
  if (marks.length > WIDEST || !marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
  if (marks.length !== cells(heading, WIDEST + 1).length) return null;
  return { type: "table", align: marks.map(alignment), head: cells(heading), rows: [], added: 0 };
}

export function addRow(table, line) {
  const row = cells(line, table.align.length);
  while (row.length < table.align.length && table.added < MOST_ADDED) {
    row.push("");
    table.added += 1;
  }
  table.rows.push(row);
}

/** Returns the cells of a row; an escaped pipe is part of its cell. */
function cells(line, most = Infinity) {
  const text = line.trim();
  const found = [];
  let cell = "";
  let at = text[0] === "|" ? 1 : 0;
  for (; at < text.length && found.length < most; at += 1) {
    if (text[at] === "\\" && at + 1 < text.length) {
      cell += text[at + 1] === "|" ? "|" : text.slice(at, at + 2);
      at += 1;
    } else if (text[at] === "|") {
      found.push(cell.trim());
      cell = "";
    } else {
      cell += text[at];
    }
  }
  if (found.length < most && (cell.trim() || !text.endsWith("|"))) found.push(cell.trim());
  return found;
}

function alignment(mark) {
  const [left, right] = [mark.startsWith(":"), mark.endsWith(":")];
  return left && right ? "center" : right ? "right" : left ? "left" : "";
}
