// Updates lists and tables while they are being written: only the last item or row is drawn again,
// so that a long list costs no more per update than a short one.

import { renderItem, renderTableRow } from "./elements.js";

/** Updates the element of `old` to `block`, where `block` is the same with more at its end. */
export function grow(element, old, block, context) {
  if (block.type === "list") return growList(element, old, block, context);
  if (block.type === "table") return growTable(element, old, block, context);
  return false;
}

/** The last line may still turn out to belong to the item before it, so both are drawn again. */
function growList(element, old, list, context) {
  const kept = old.children.length - 2;
  const isSame = old.mark === list.mark && old.first === list.first && old.isLoose === list.isLoose;
  if (!isSame || kept < 1 || list.children.length < kept) return false;
  // Headings are numbered from the top, and checkboxes change how the whole list looks.
  const fresh = list.children.slice(kept);
  if (element.querySelector(HEADINGS) !== null || fresh.some(hasHeading)) return false;
  const items = fresh.map((item) => renderItem(item, !list.isLoose, context));
  if (element.matches(".tasks") !== items.some((item) => item.matches(".task"))) return false;
  while (element.childElementCount > kept) element.lastElementChild.remove();
  element.append(...items);
  return true;
}

const HEADINGS = "h3, h4, h5, h6";
const hasHeading = (block) => block.type === "heading" || (block.children ?? []).some(hasHeading);

function growTable(element, old, table, context) {
  const body = element.querySelector("tbody");
  const last = old.rows.length - 1;
  const isSame = [old.head, old.align].join() === [table.head, table.align].join();
  if (!isSame || body === null || last < 0 || table.rows.length <= last) return false;
  body.lastElementChild.remove();
  const rows = table.rows.slice(last);
  body.append(...rows.map((texts) => renderTableRow("td", texts, table, context)));
  return true;
}
