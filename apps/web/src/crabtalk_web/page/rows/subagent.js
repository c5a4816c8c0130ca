// Sub-agents: their rows inside the row of the call that delegated to them, to any depth; with
// name, task and statistics.

import { arrange, h } from "../draw/dom.js";
import { icon } from "../draw/icons.js";
import { renderMarkdown } from "../draw/markdown.js";
import { counted } from "../draw/time.js";
import { visible } from "../draw/visible.js";
import { hueOf } from "../story/agents.js";

// Only the latest rows are shown; the others on request.
const MOST = 200;

export class Children {
  element = h("div", { class: "children" });
  #byId = new Map();
  #more = h("button", { type: "button", class: "show-all quiet" });
  #nothing = h("p", { class: "nothing" });
  #shown = MOST;
  #result = { text: null, nodes: [] };

  update(row, context) {
    const rows = row.children ?? [];
    const shown = rows.slice(Math.max(0, rows.length - this.#shown));
    const nodes = shown.map((child) => this.#node(child, context));
    const hidden = rows.length - shown.length;
    if (hidden) nodes.unshift(this.#button(row, context, hidden));
    if (!nodes.length) nodes.push(this.#empty(row));
    arrange(this.element, nodes);
    // Deeper indents would only take space from the text.
    this.element.classList.toggle("is-deep", context.depth > 4);
    if (this.#byId.size > 2 * rows.length + MOST) this.#forget(rows);
  }

  /** Returns its result, unless that repeats its last text. */
  result(row, context) {
    const text = typeof row.result === "string" ? row.result.trim() : "";
    const said = (row.children ?? []).findLast((child) => child.kind === "text" && !child.thinking);
    const isSaid = said !== undefined && said.text.trim() === text;
    const key = isSaid ? "" : text;
    if (this.#result.text !== key) {
      const words = key ? renderMarkdown(key, { copy: context.copy }) : null;
      const name = row.state === "failed" ? "task-result is-failed" : "task-result";
      this.#result = { text: key, nodes: words ? [h("div", { class: name }, words)] : [] };
    }
    return this.#result.nodes;
  }

  #node(row, context) {
    const known = this.#byId.get(row.id);
    if (known) {
      context.updateRow(known, row, context);
      return known;
    }
    const element = context.renderRow(row, context);
    this.#byId.set(row.id, element);
    return element;
  }

  #button(row, context, hidden) {
    this.#more.textContent = `Show ${counted(hidden, "earlier step")}`;
    this.#more.onclick = () => {
      this.#shown += 5 * MOST;
      this.update(row, context);
    };
    return this.#more;
  }

  #empty(row) {
    const isRunning = row.state === "running";
    this.#nothing.textContent = isRunning ? "It has not said anything yet." : "It said nothing.";
    return this.#nothing;
  }

  #forget(rows) {
    const ids = new Set(rows.map((row) => row.id));
    for (const id of this.#byId.keys()) if (!ids.has(id)) this.#byId.delete(id);
  }
}

/** "3 calls, 1 sub-agent": counts everything inside, at any depth. */
export function countsOf(row) {
  const count = { calls: 0, tasks: 0 };
  const left = [...(row.children ?? [])];
  while (left.length) {
    const child = left.pop();
    if (child.kind !== "tool") continue;
    count[child.task ? "tasks" : "calls"] += 1;
    left.push(...(child.children ?? []));
  }
  return [
    count.calls ? counted(count.calls, "call") : "",
    count.tasks ? counted(count.tasks, "sub-agent") : "",
  ].filter(Boolean).join(", ");
}

/** Returns the agent's name in its colour. */
export function renderTaskName(name) {
  return h("span", { class: "task-name has-speaker", style: { "--hue": String(hueOf(name)) } },
    h("bdi", {}, visible(name.slice(0, 100))));
}

/** Returns its task, folded, because its own text matters more. */
export function renderPrompt(row, context) {
  const prompt = [row.args?.prompt, row.args?.message, row.args?.description].find(
    (text) => typeof text === "string" && text.trim(),
  );
  if (!prompt) return [];
  const details = h("details", { class: "task-prompt", onToggle: () => {
    if (!details.open || details.childElementCount > 1) return;
    details.append(renderMarkdown(prompt, { copy: context.copy }));
  } }, h("summary", {}, icon("chevron"), "What it was told"));
  return [details];
}
