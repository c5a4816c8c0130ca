// The result of the shell tool: JSON, maybe after a sentence, and maybe with its middle left out,
// which makes it invalid JSON.

/** Returns {stdout, stderr, code, note}, or null for any other text. */
export function shellOutcome(text) {
  const start = text.startsWith('{"stdout"') ? 0 : text.indexOf('\n{"stdout"') + 1;
  if (start === 0 && !text.startsWith('{"stdout"')) return null;
  const note = text.slice(0, start).trim();
  const found = parsed(text.slice(start)) ?? salvaged(text.slice(start));
  if (found === null) return null;
  return {
    stdout: textOf(found.stdout),
    stderr: textOf(found.stderr),
    code: Number.isInteger(found.exit_code) ? found.exit_code : 0,
    note,
  };
}

const textOf = (value) => (typeof value === "string" ? value : "");

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const END = /","exit_code":(-?\d{1,9})[^"]{0,40}(?:"cut":\{[^}]{0,200}\})?\}?\s*$/;

/** Reads the parts of a result whose middle was left out. */
function salvaged(text) {
  const tail = END.exec(text.slice(-400));
  const body = text.slice('{"stdout":"'.length, text.length - (tail?.[0].length ?? 0));
  const border = body.lastIndexOf('","stderr":"');
  const [stdout, stderr] = border === -1
    ? [body, ""]
    : [body.slice(0, border), body.slice(border + '","stderr":"'.length)];
  const code = tail ? Number(tail[1]) : 0;
  return { stdout: unescaped(stdout), stderr: unescaped(stderr), exit_code: code };
}

const ESCAPES = { n: "\n", t: "\t", r: "\r", b: "\b", f: "\f" };

function unescaped(text) {
  return text.replace(/\\(?:u([0-9a-fA-F]{4})|([^]))/g, (_, code, char) =>
    code ? String.fromCharCode(parseInt(code, 16)) : (ESCAPES[char] ?? char));
}
