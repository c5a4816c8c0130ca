// Emphasis: pairs runs of stars, underscores and tildes by CommonMark's rules. Runs are a linked
// list, and failed searches are remembered, so the time is linear in the length of the text.

const SPACE = /[\s\u00a0]/u;
const PUNCTUATION = /[\p{P}\p{S}]/u;

/** A run of marks at one position, and whether it can open and close. */
export function runAt(text, at, end) {
  const char = text[at];
  const count = end - at;
  const before = at === 0 ? "\n" : characterBefore(text, at);
  const after = end >= text.length ? "\n" : String.fromCodePoint(text.codePointAt(end));
  const [spaceBefore, spaceAfter] = [SPACE.test(before), SPACE.test(after)];
  const [markBefore, markAfter] = [PUNCTUATION.test(before), PUNCTUATION.test(after)];
  const isLeft = !spaceAfter && (!markAfter || spaceBefore || markBefore);
  const isRight = !spaceBefore && (!markBefore || spaceAfter || markAfter);
  // A tilde between numbers often means "about": 5~6 and 7~8 is not struck out.
  const isStrict = char === "_" || (char === "~" && count === 1);
  return {
    kind: "run",
    at,
    char,
    count,
    size: count,
    opens: [],
    closes: [],
    canOpen: isLeft && (!isStrict || !isRight || markBefore),
    canClose: isRight && (!isStrict || !isLeft || markAfter),
    before: null,
    after: null,
  };
}

function characterBefore(text, at) {
  const isPair = at > 1 && /[\udc00-\udfff]/.test(text[at - 1]);
  return isPair ? text.slice(at - 2, at) : text[at - 1];
}

/** The runs of a text so far, in order. */
export class Runs {
  last = null;

  push(run) {
    run.before = this.last;
    if (this.last) this.last.after = run;
    this.last = run;
  }

  remove(run) {
    if (run.before) run.before.after = run.after;
    if (run.after) run.after.before = run.before;
    else this.last = run.before;
  }

  /** Pairs all runs after `bottom`, and removes them. */
  pair(bottom) {
    const floors = new Map(); // the run before which such a closer has no opener
    let closer = this.first(bottom);
    while (closer !== null) {
      closer = closer.canClose ? this.close(closer, bottom, floors) : closer.after;
    }
    while (this.last !== bottom) this.remove(this.last);
  }

  first(bottom) {
    let run = this.last;
    if (run === bottom) return null;
    while (run.before !== bottom) run = run.before;
    return run;
  }

  close(closer, bottom, floors) {
    const size = closer.char === "~" ? closer.size : closer.size % 3;
    const key = `${closer.char}${closer.canOpen}${size}`;
    const floor = floors.get(key) ?? 0;
    let opener = closer.before;
    while (opener !== bottom && opener.at >= floor && !isPair(opener, closer)) {
      opener = opener.before;
    }
    if (opener === bottom || opener.at < floor) {
      floors.set(key, closer.at);
      const next = closer.after;
      if (!closer.canOpen) this.remove(closer);
      return next;
    }
    return this.wrap(opener, closer);
  }

  wrap(opener, closer) {
    const isDouble = opener.count >= 2 && closer.count >= 2;
    const used = closer.char === "~" ? closer.count : isDouble ? 2 : 1;
    const name = closer.char === "~" ? "strike" : isDouble ? "strong" : "emphasis";
    while (closer.before !== opener) this.remove(closer.before);
    opener.opens.unshift(name);
    closer.closes.push(name);
    opener.count -= used;
    closer.count -= used;
    if (opener.count === 0) this.remove(opener);
    if (closer.count > 0) return closer;
    const next = closer.after;
    this.remove(closer);
    return next;
  }
}

function isPair(opener, closer) {
  if (opener.char !== closer.char || !opener.canOpen) return false;
  if (closer.char === "~") return opener.count === closer.count && closer.count <= 2;
  const isOdd = (opener.canClose || closer.canOpen) && (opener.size + closer.size) % 3 === 0;
  return !isOdd || (opener.size % 3 === 0 && closer.size % 3 === 0);
}
