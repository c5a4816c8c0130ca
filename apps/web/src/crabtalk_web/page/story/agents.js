// The speakers other than the conversation's own agent: guests, and delegated tasks. A task is
// known by the call that delegated it; an agent without such a call is a guest, or a task whose
// call is on a page that is not loaded yet.

const SEPARATOR = " — ";

export class Agents {
  #known = new Map();

  /** Returns the shared object with everything known about the agent `id`. */
  of(id) {
    let agent = this.#known.get(id);
    if (!agent) {
      agent = {
        id,
        title: "",
        isActive: false,
        isOver: false,
        host: null, // the row of the call that delegated to it
        rows: new Set(), // its rows, wherever they are shown
        speaker: { id, name: "guest", kind: "guest", hue: hueOf("guest") },
      };
      this.#known.set(id, agent);
    }
    return agent;
  }

  /** The agent starts, with this title. */
  start(agent, title) {
    agent.title = title || agent.title;
    agent.isActive = !agent.isOver;
    describe(agent);
  }

  stop(agent) {
    agent.isOver = true;
    agent.isActive = false;
    describe(agent);
  }

  /** The row of a call delegated to it. */
  link(agent, row) {
    agent.host = row;
    describe(agent);
  }
}

function describe(agent) {
  const [first, rest] = split(agent.title);
  const isTask = agent.host !== null || rest !== "";
  const given = agent.host?.args.subagent_type;
  const name = (typeof given === "string" && given) || first || (isTask ? "task" : "guest");
  Object.assign(agent.speaker, { name, kind: isTask ? "task" : "guest", hue: hueOf(name) });
  if (agent.host === null) return;
  const asked = agent.host.args.description;
  const title = rest || (typeof asked === "string" && asked) || agent.title;
  agent.host.task = { name, title, isActive: agent.isActive };
}

function split(title) {
  const at = title.indexOf(SEPARATOR);
  return at < 0 ? [title, ""] : [title.slice(0, at), title.slice(at + SEPARATOR.length)];
}

/** Returns the same colour for the same name, on every device. */
export function hueOf(name) {
  let hash = 0x811c9dc5;
  for (const letter of name) hash = Math.imul(hash ^ letter.codePointAt(0), 0x01000193) >>> 0;
  return hash % 360;
}
