// What a sub-agent said and did: rows inside the row of the call that delegated to it, to any depth,
// and a line that counts them.

import { arrange, h } from "../draw/dom.js";
import { counted } from "../draw/time.js";
import { renderMarkdown } from "../draw/markdown.js";

// More rows than this are shown when somebody asks for them: the latest first.
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
    if (rows.length > shown.length) nodes.unshift(this.#button(row, context, rows.length - shown.length));
    if (!nodes.length) nodes.push(this.#empty(row));
    arrange(this.element, nodes);
    // Deeper than this an indent says nothing, and takes the room of words.
    this.element.classList.toggle("is-deep", context.depth > 4);
    if (this.#byId.size > 2 * rows.length + MOST) this.#forget(rows);
  }

  /** What it gave back, unless that is what it said last. */
  result(row, context) {
    const text = typeof row.result === "string" ? row.result.trim() : "";
    const said = (row.children ?? []).findLast((child) => child.kind === "text" && !child.thinking);
    const isSaid = said !== undefined && said.text.trim() === text;
    const key = isSaid ? "" : text;
    if (this.#result.text !== key) {
      const nodes = key ? [h("div", { class: `task-result is-${row.state}` }, renderMarkdown(key, { copy: context.copy }))] : [];
      this.#result = { text: key, nodes };
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

/** "3 calls, 1 sub-agent": everything inside, at any depth. */
export function renderCounts(row) {
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
