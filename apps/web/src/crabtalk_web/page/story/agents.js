// Who speaks where it is not the conversation's own agent: guests, and tasks that were delegated.
// A task is known by the call that delegated it; an agent without such a call is a guest, or a
// task whose call is on a page that was not read yet.

const SEPARATOR = " — ";

export class Agents {
  #known = new Map();

  /** What is known of the agent that `id` stands for, as one object for all who ask. */
  of(id) {
    let agent = this.#known.get(id);
    if (!agent) {
      agent = {
        id,
        title: "",
        isActive: false,
        isOver: false,
        host: null, // the row of the call that delegated to it
        rows: new Set(), // what it said and did, wherever that is shown
        speaker: { id, name: "guest", kind: "guest", hue: hueOf("guest") },
      };
      this.#known.set(id, agent);
    }
    return agent;
  }

  /** It begins, under this title. */
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

  /** The row of a call is what delegated to it. */
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

/** The same colour for the same name, on every device. */
export function hueOf(name) {
  let hash = 0x811c9dc5;
  for (const letter of name) hash = Math.imul(hash ^ letter.codePointAt(0), 0x01000193) >>> 0;
  return hash % 360;
}
