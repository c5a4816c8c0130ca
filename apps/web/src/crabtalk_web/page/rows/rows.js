// Rows of a conversation: creates an element for each, and updates it when its row changes. An
// update touches only what differs, so that focus, selection and open parts stay.

import { renderEnd, renderService, updateService } from "./service.js";
import { renderFile, updateFile } from "./file.js";
import { renderText, updateText } from "./text.js";
import { renderTool, updateTool } from "./tool.js";
import { renderUser, updateUser } from "./user.js";

export { renderLive, updateLive } from "./text.js";
export { settleApproval } from "./approval.js";
export { renderQuestion } from "./question.js";

const KINDS = {
  user: [renderUser, updateUser],
  text: [renderText, updateText],
  service: [renderService, updateService],
  tool: [renderTool, updateTool],
  file: [renderFile, updateFile],
  end: [renderEnd, () => undefined],
};

const revisions = new WeakMap();

/**
 * @param {object} row of a story
 * @param {{session: object, openFile: Function, copy: Function, announce: Function}} context
 * @returns {HTMLElement}
 */
export function renderRow(row, context) {
  const [render] = KINDS[row.kind] ?? KINDS.service;
  // Rows that contain rows get this function, because they cannot import this module.
  const element = render(row, { depth: 0, ...context, renderRow, updateRow });
  element.dataset.row = row.id;
  revisions.set(element, row.revision);
  return element;
}

/** Updates the element of a row to the row's current revision. */
export function updateRow(element, row, context) {
  if (revisions.get(element) === row.revision) return;
  revisions.set(element, row.revision);
  const [, update] = KINDS[row.kind] ?? KINDS.service;
  update(element, row, { depth: 0, ...context, renderRow, updateRow });
}
