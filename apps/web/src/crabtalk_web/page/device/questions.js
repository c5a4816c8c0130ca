// The pending questions of an agent, read from the state its gateway publishes. Two generations of
// the protocol ask in two ways; both are read, and each is answered in its own way.

import { approvalOf } from "../story/approvals.js";

const DENY = "Deny";

/** Returns the pending questions, the earliest first. */
export function questionsOf(state) {
  const asked = [
    ...entries(state?.communications).map(([id, entry]) => formOf(id, entry)),
    ...entries(state?.requests).map(([id, entry]) => requestOf(id, entry)),
  ];
  return asked.filter((one) => one !== null).sort((a, b) => a.createdAt - b.createdAt);
}

/** Returns the call that answers: `[method, params]`. `answers` is null to dismiss. */
export function answerTo(question, answers) {
  const { id, isOlder } = question;
  if (!isOlder) {
    const status = answers ? "answered" : "cancelled";
    return ["communication", { id, kind: "form", status, ...(answers ? { answers } : {}) }];
  }
  if (!answers) return ["permission", { id, approved: false }];
  const told = {};
  for (const { id: name, question: text, approval } of question.questions) {
    const { options = [], custom = "" } = answers[name] ?? {};
    const words = [...options, custom].filter(Boolean).join(", ");
    // Two calls with the same text have one answer here, and denying either denies both.
    if (!(approval && told[text] === DENY)) told[text] = words;
  }
  const updatedInput = { answers: told };
  return ["permission", { id, approved: true, updatedInput }];
}

function formOf(id, entry) {
  if (entry.kind !== "form") return null;
  return question(id, entry, entry.form?.questions, false);
}

function requestOf(id, entry) {
  if (entry.tool !== "AskUserQuestion") return null;
  return question(id, entry, entry.arguments?.questions, true);
}

function question(id, { createdAt, toolUseId }, asked, isOlder) {
  const questions = (Array.isArray(asked) ? asked : []).filter(isObject).map((one, at) => ({
    id: textOr(one.id) || `q${at}`,
    header: textOr(one.header),
    question: textOr(one.question),
    options: optionsOf(one.options),
    multiSelect: one.multiSelect === true,
    approval: approvalOf(one.approval),
    allowCustom: one.allowCustom === true,
    required: one.required === true,
  }));
  if (!questions.length) return null;
  const at = Number.isFinite(createdAt) ? createdAt : 0;
  const isApproval = questions.every(({ approval }) => approval !== null);
  return { id, createdAt: at, call: textOr(toolUseId), questions, isApproval, isOlder };
}

function optionsOf(options) {
  const given = (Array.isArray(options) ? options : []).filter(isObject);
  return given.map(({ label, description }) =>
    ({ label: textOr(label), description: textOr(description) }));
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const entries = (table) =>
  (isObject(table) ? Object.entries(table) : []).filter(([, entry]) => isObject(entry));
const textOr = (value) => (typeof value === "string" ? value : "");
