// Checks link addresses, and finds plain addresses in a text. Only web and mail addresses become
// links; other schemes stay text.

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const LONGEST = 8192;
const PLAIN = /https?:\/\/|www\./gi;
// Characters that may precede an address inside a text.
const BEFORE = /[\s*_~("'[{:>,;]/u;
const LOCAL = /[a-z0-9.+_-]/i;
const HOST = /[a-z0-9_-]+(?:\.[a-z0-9_-]+)+/iy;

/** Returns the absolute address for a link, or null if it must not be one. */
export function safeAddress(address) {
  if (address.length > LONGEST) return null;
  try {
    const url = new URL(address);
    return SCHEMES.has(url.protocol) ? url : null;
  } catch {
    return null;
  }
}

const NAMED = /^\s*https?:\/\/([^\s\/?#]+)/i;
const DOMAIN =
  /^\s*((?:[^\s\/@:?#.]+\.)+(?:com|org|net|io|dev|app|ai|co|gov|edu|eu|uk|de|fr))(?=[\/:?#\s]|$)/iu;

/** Whether a link must show its address, because its text names, or looks like, another place. */
export function isMisleading(text, url) {
  if (url.username || url.password || /(?:^|\.)xn--/.test(url.hostname)) return true;
  const start = text.slice(0, 300);
  const named = NAMED.exec(start) ?? DOMAIN.exec(start);
  if (named === null) return false;
  try {
    return bare(new URL(`https:` + `//${named[1]}`).hostname) !== bare(url.hostname);
  } catch {
    return true;
  }
}

const bare = (host) => host.replace(/^www\./, "");

/**
 * Finds the first plain web address that begins between `from` and `to`: start, end and url.
 * Without `url`, a candidate that ends at `end` is no address. Null: nothing found.
 */
export function plainAddress(text, from, to) {
  const part = text.slice(from, to);
  PLAIN.lastIndex = 0;
  for (let found = PLAIN.exec(part); found !== null; found = PLAIN.exec(part)) {
    const start = from + found.index;
    if (start > 0 && !BEFORE.test(text[start - 1])) continue;
    const word = endOfWord(text, start);
    const end = trimmed(text, start, word);
    const shown = text.slice(start, end);
    if (end <= start + found[0].length) return { start, end: word, url: null };
    const url = safeAddress(/^www/i.test(shown) ? `http:` + `//${shown}` : shown);
    return { start, end: url === null ? word : end, url };
  }
  return null;
}

/** Splits a text outside links into plain parts and addresses. */
export function* linked(text) {
  let at = 0;
  while (at < text.length) {
    const web = plainAddress(text, at, text.length);
    if (web === null) {
      yield* mailed(text.slice(at));
      return;
    }
    if (web.start > at) yield* mailed(text.slice(at, web.start));
    yield { text: text.slice(web.start, web.end), url: web.url };
    at = web.end;
  }
}

function* mailed(text) {
  let done = 0;
  for (let sign = text.indexOf("@"); sign !== -1; sign = text.indexOf("@", sign + 1)) {
    let start = sign;
    while (start > done && LOCAL.test(text[start - 1])) start -= 1;
    HOST.lastIndex = sign + 1;
    const host = HOST.exec(text);
    if (start === sign || host === null || /[-_]$/.test(host[0])) continue;
    const end = sign + 1 + host[0].length;
    const url = safeAddress(`mailto:${text.slice(start, end)}`);
    if (url === null) continue;
    if (start > done) yield { text: text.slice(done, start), url: null };
    yield { text: text.slice(start, end), url };
    done = end;
  }
  if (done < text.length) yield { text: text.slice(done), url: null };
}

function endOfWord(text, start) {
  let end = start;
  while (end < text.length && !/[\s<]/.test(text[end])) end += 1;
  return end;
}

// A full stop, an unmatched closing bracket or an entity belongs to the sentence.
function trimmed(text, start, end) {
  let open = 0;
  for (let at = start; at < end; at += 1) open += text[at] === "(" ? 1 : text[at] === ")" ? -1 : 0;
  for (;;) {
    const last = text[end - 1];
    if (end > start && last === ")" && open < 0) open += 1;
    else if (last === ";") return withoutReference(text, start, end);
    else if (end <= start || !/[?!.,:*_~'"\]}]/.test(last)) return end;
    end -= 1;
  }
}

function withoutReference(text, start, end) {
  const tail = /&[a-z0-9]{1,32};$/i.exec(text.slice(Math.max(start, end - 34), end));
  return tail === null ? end - 1 : end - tail[0].length;
}
