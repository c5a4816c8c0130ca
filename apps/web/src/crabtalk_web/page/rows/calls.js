// The contents of a tool call by tool: the command and its output, the file and its changes; for an
// unknown tool its arguments and its result.

import { renderCode } from "../draw/code.js";
import { linesBetween, renderDiff } from "../draw/diff.js";
import { h } from "../draw/dom.js";
import { languageOfPath } from "../draw/languages.js";
import { visible } from "../draw/visible.js";
import { approvalOf } from "../story/approvals.js";
import { renderApprovalFacts } from "./approval.js";
import { shellOutcome } from "./shell.js";
import { renderOutput } from "./output.js";

const ICONS = {
  bash: "terminal", shell: "terminal", read: "file", write: "edit", edit: "edit", multiedit: "edit",
  search: "search", "search-sessions": "search", recall: "memory", remember: "memory",
  forget: "memory", fetch: "globe", webfetch: "globe", websearch: "search", grep: "search",
  glob: "search", "ask-user": "question", task: "task", skill: "memory", "send-file": "file",
};
// Longer edits are not counted just for a summary line.
const MOST_COUNTED = 20_000;
// Names of the same tools in other programs.
const SAME = {
  codexbash: "bash", geminibash: "bash", execute: "bash", shell: "bash", agent: "task",
  askuserquestion: "ask-user", notebookread: "read",
};

/** Returns the canonical name of a tool. */
export function toolName(name) {
  const plain = name.toLowerCase().replace(/_/g, "-");
  return SAME[plain] ?? plain;
}

export const iconOf = (name) => ICONS[toolName(name)] ?? "tool";

/** Returns the request of the call, as nodes. */
export function renderCall(row, context) {
  const draw = CALLS[toolName(row.name)] ?? renderArguments;
  return [draw(row.args ?? {}, context, row.title ?? "")].flat().filter(Boolean);
}

/** Returns the result of the call, as nodes; none if the request shows everything. */
export function renderResult(row, context) {
  const text = typeof row.result === "string" ? row.result : "";
  if (row.state === "cut" && (!text || text === "interrupted")) {
    return [h("p", { class: "nothing" }, "It was stopped before it was done.")];
  }
  if (!text) return [];
  const isError = row.state === "failed";
  const options = { copy: context.copy, isError, label: isError ? "Error" : "Output" };
  const draw = RESULTS[toolName(row.name)];
  return draw ? draw(text, row.args ?? {}, options) : [renderOutput(text, options)];
}

/** Returns a few words for the summary line: {text, isBad}, or null. */
export function noteOf(row) {
  const name = toolName(row.name);
  if (name === "bash" && typeof row.result === "string" && row.state === "done") {
    const code = shellOutcome(row.result)?.code;
    return code ? { text: `exit ${code}`, isBad: true } : null;
  }
  const args = row.args ?? {};
  if (name === "ask-user") return receiptOf(row, args);
  const [old, fresh] = [args.old_string, args.new_string];
  if (name !== "edit" || typeof old !== "string" || typeof fresh !== "string") return null;
  if (old.length + fresh.length > MOST_COUNTED) return null;
  const kinds = linesBetween(old, fresh).map((line) => line.kind);
  const count = (kind) => kinds.filter((one) => one === kind).length;
  return { text: `+${count("added")} \u2212${count("removed")}`, isBad: false };
}

const pathOf = (args) => [args.path, args.file_path].find((path) => typeof path === "string") ?? "";

const CALLS = {
  bash: (args, { copy }) => {
    const command = Array.isArray(args.command) ? args.command.join(" ") : args.command;
    if (typeof command !== "string") return renderArguments(args, { copy });
    const shown = renderCode(command, "shell", { copy, label: "Command" });
    return [shown, renderArguments(without(args, ["command"]), { copy })];
  },
  read: (args, context, title) => renderPath(pathOf(args), title),
  edit: (args, context, title) => [renderPath(pathOf(args), title), renderEdit(args)],
  multiedit: (args, context, title) => [
    renderPath(pathOf(args), title),
    ...list(args.edits).map(renderEdit),
  ],
  write: (args, { copy }, title) => [
    renderPath(pathOf(args), title),
    renderCode(String(args.content ?? ""), languageOfPath(pathOf(args)), { copy }),
  ],
  "ask-user": (args) => list(args.questions).map((one) => {
    const approval = approvalOf(one?.approval);
    if (approval) return renderApprovalFacts(approval);
    return h("p", { class: "asked" }, visible(String(one?.question ?? one?.header ?? "")));
  }),
};

const RESULTS = {
  bash: (text, args, options) => {
    const outcome = shellOutcome(text);
    if (outcome === null) return [renderOutput(text, options)];
    const { copy } = options;
    const isError = options.isError || Boolean(outcome.code);
    return [
      outcome.note ? h("p", { class: "shell-note" }, visible(outcome.note)) : null,
      outcome.stdout ? renderOutput(outcome.stdout, { copy }) : null,
      outcome.stderr ? renderOutput(outcome.stderr, { copy, isError, label: "Errors" }) : null,
      outcome.stdout || outcome.stderr ? null : h("p", { class: "nothing" }, "It printed nothing."),
      outcome.code ? h("p", { class: "shell-code" }, `Exit code ${outcome.code}`) : null,
    ].filter(Boolean);
  },
  read: (text, args, options) => {
    const numbered = options.isError ? null : /^(\d+)\t/.exec(text);
    if (numbered === null) return [renderOutput(text, options)];
    const [body, note] = text.split(/\n(?=--- \d+ total lines)/);
    const plain = body.replace(/^\d+\t/gm, "");
    const language = languageOfPath(pathOf(args)) || "text";
    return [
      renderOutput(plain, { ...options, label: "Content", language, gutter: Number(numbered[1]) }),
      note ? h("p", { class: "nothing" }, note.replace(/^--- | ---/g, "")) : null,
    ].filter(Boolean);
  },
  edit: (text, args, options) => (text === "ok" ? [] : [renderOutput(text, options)]),
  "ask-user": (text, args, options) => {
    if (isApproval(args)) return [h("p", { class: "receipt" }, visible(text))];
    return [renderOutput(text, { ...options, label: "Answer" })];
  },
};

const isApproval = (args) => list(args.questions).some((one) => approvalOf(one?.approval) !== null);

/** Shows the decision in the summary line. */
function receiptOf(row, args) {
  if (row.state !== "done" || !row.result || !isApproval(args)) return null;
  const decided = row.result.split("\n").join(" · ");
  return { text: decided, isBad: false };
}

const list = (value) => (Array.isArray(value) ? value.slice(0, 100) : []);

function renderEdit(args) {
  const [old, fresh] = [args?.old_string ?? args?.oldString, args?.new_string ?? args?.newString];
  if (typeof old !== "string" && typeof fresh !== "string") return null;
  return renderDiff(linesBetween(String(old ?? ""), String(fresh ?? "")));
}

/** Returns the path, unless the summary line shows all of it. */
function renderPath(path, title) {
  if (!path || title.includes(`\`${path}\``)) return null;
  return h("p", { class: "tool-path" }, h("code", { dir: "ltr" }, visible(path, { isCode: true })));
}

// ── Arguments of any tool ──────────────────────────────────────────────────────────────────────

const HIDDEN = new Set(["sessionSubagent", "file_path"]);

function without(args, names) {
  return Object.fromEntries(Object.entries(args).filter(([name]) => !names.includes(name)));
}

/** Shows names and values; short values on their line, long and nested ones in a block. */
function renderArguments(args, { copy }) {
  const entries = Object.entries(args).filter(([name]) => !HIDDEN.has(name)).slice(0, 100);
  if (!entries.length) return null;
  return h("dl", { class: "arguments" }, entries.map(([name, value]) => [
    h("dt", {}, visible(name.slice(0, 200), { isCode: true })),
    h("dd", {}, renderValue(value, copy)),
  ]));
}

function renderValue(value, copy) {
  if (typeof value === "string") {
    if (value.length <= 200 && !value.includes("\n")) return visible(value, { isCode: true });
    return renderOutput(value, { copy, label: "Text" });
  }
  const short = JSON.stringify(value) ?? "";
  if (short.length <= 80) return visible(short, { isCode: true });
  return renderCode(JSON.stringify(value, null, 2), "json", { copy });
}
