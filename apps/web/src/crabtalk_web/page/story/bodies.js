// Parses message bodies in all their forms: an envelope, an envelope one level deeper (how phones
// wrap their files), or a body from before envelopes. A body that cannot be parsed is null, and
// readers skip it.

/**
 * @typedef {object} Entry  One thing that happened, with all the doubt taken out of it.
 * @property {string} id       its own; empty for bodies of the older kind
 * @property {string} localId  by which its sender knows it; empty where there is none
 * @property {number} seq      its number in the session
 * @property {number} time     milliseconds since 1970
 * @property {number} at       when the relay got it
 * @property {boolean} isTimed whether `time` is by the clock that the agent's envelopes go by
 * @property {"user"|"agent"} role
 * @property {string} turn     empty for none
 * @property {string} subagent empty for none
 * @property {object|null} usage
 * @property {object} ev       one of the nine events; optional parts are filled in
 */

// Messages that a gateway copied from other clients. They use the agent's clock.
const FROM_GATEWAY = "crabtalk";
// Beyond this JavaScript has no dates.
const LATEST = 8.64e15;
const CUID = /^[0-9a-z]{2,32}$/;
const STATUSES = ["completed", "failed", "cancelled"];

/** @returns {Entry|null} */
export function readMessage({ seq, localId, createdAt }, plain) {
  if (!isObject(plain)) return null;
  const message = { seq, localId: textOr(localId), createdAt: timeOr(createdAt, 0) };
  if (plain.role === "user") return readUser(message, plain);
  if (plain.role === "session") return readSession(message, plain);
  if (plain.role === "agent") return readOlderAgent(message, plain);
  return null;
}

function readUser(message, { content, meta }) {
  if (!isObject(content) || content.type !== "text" || !isText(content.text)) return null;
  const shown = isObject(meta) ? textOr(meta.displayText) : "";
  return entry(message, { role: "user", ev: { t: "text", text: shown || content.text } });
}

function readSession(message, { content, meta }) {
  const isWrapped = isObject(content) && content.type === "session" && isObject(content.data);
  const isOurs = isObject(meta) && meta.sentFrom === FROM_GATEWAY;
  return readEnvelope(message, isWrapped ? content.data : content, isOurs);
}

function readEnvelope(message, given, isOfGateway) {
  if (!isObject(given) || !isText(given.id) || !isTime(given.time)) return null;
  if (given.role !== "user" && given.role !== "agent") return null;
  const ev = isObject(given.ev) && Object.hasOwn(EVENTS, given.ev.t)
    ? EVENTS[given.ev.t](given.ev)
    : null;
  if (ev === null) return null;
  if (given.role === "user" && ev.t !== "text" && ev.t !== "file") return null;
  if (given.subagent !== undefined && !isCuid(given.subagent)) return null;
  const usage = readUsage(given.usage);
  const turn = textOr(given.turn);
  const isOnlyUsage = usage !== null && ev.t === "service" && !ev.text;
  if (given.role === "agent" && !turn && !isOnlyUsage) return null;
  return entry(message, {
    id: given.id,
    time: given.time,
    // A person's device has its own clock, which may be minutes off.
    isTimed: given.role === "agent" || isOfGateway,
    role: given.role,
    turn,
    subagent: textOr(given.subagent),
    usage,
    ev,
  });
}

// Of the older agent bodies only one kind is text for people.
function readOlderAgent(message, { content }) {
  const data = isObject(content) && content.type === "event" ? content.data : null;
  if (!isObject(data) || data.type !== "message" || !isText(data.message)) return null;
  return entry(message, { role: "agent", ev: { t: "service", text: data.message } });
}

function entry(message, said) {
  return {
    id: "",
    localId: message.localId,
    seq: message.seq,
    time: message.createdAt,
    at: message.createdAt,
    isTimed: false,
    turn: "",
    subagent: "",
    usage: null,
    ...said,
  };
}

const EVENTS = {
  text: ({ text, thinking }) =>
    isText(text) ? { t: "text", text, thinking: thinking === true } : null,
  service: ({ text, refused }) =>
    isText(text) ? { t: "service", text, refused: readRefused(refused) } : null,
  "tool-call-start": readCall,
  "tool-call-end": ({ call, result, isError, durationMs }) =>
    isText(call)
      ? {
          t: "tool-call-end",
          call,
          result: textOr(result),
          isError: isError === true,
          durationMs: isCount(durationMs) ? durationMs : 0,
        }
      : null,
  file: readFile,
  "turn-start": () => ({ t: "turn-start" }),
  "turn-end": ({ status }) => (STATUSES.includes(status) ? { t: "turn-end", status } : null),
  start: ({ title }) => ({ t: "start", title: textOr(title) }),
  stop: () => ({ t: "stop" }),
};

function readCall({ call, name, title, description, args }) {
  if (![call, name, title, description].every(isText) || !isObject(args)) return null;
  return { t: "tool-call-start", call, name, title, description, args };
}

function readFile({ ref, name, size, mimeType, image }) {
  if (!isText(ref) || !isText(name) || !Number.isFinite(size)) return null;
  const shown = { mimeType: textOr(mimeType), image: readImage(image) };
  return { t: "file", ref, name, size: Math.max(0, size), ...shown };
}

/** Returns which message of a person a line reports as refused. */
function readRefused(refused) {
  if (!isObject(refused) || !isText(refused.reason)) return null;
  return { reason: refused.reason, localId: textOr(refused.localId), chain: textOr(refused.chain) };
}

function readImage(image) {
  if (!isObject(image)) return null;
  const { width, height, thumbhash } = image;
  if (!isCount(width) || !isCount(height) || !width || !height) return null;
  return { width, height, thumbhash: textOr(thumbhash) };
}

function readUsage(usage) {
  if (!isObject(usage) || !isCount(usage.input_tokens)) return null;
  const extra = (key) => (isCount(usage[key]) ? usage[key] : 0);
  const cached = extra("cache_creation_input_tokens") + extra("cache_read_input_tokens");
  return { used: usage.input_tokens + cached, window: extra("context_window") };
}

export const isCuid = (value) => isText(value) && CUID.test(value);
const isText = (value) => typeof value === "string";
const textOr = (value) => (isText(value) ? value : "");
const isObject = (value) =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isCount = (value) => Number.isFinite(value) && value >= 0;
const isTime = (value) => Number.isFinite(value) && Math.abs(value) <= LATEST;
const timeOr = (value, other) => (isTime(value) ? value : other);
