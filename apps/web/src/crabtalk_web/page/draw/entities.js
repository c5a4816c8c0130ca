// Character references and backslash escapes: all numeric references, and of HTML's two thousand
// names the common ones. An unknown name stays as it is.

const NAMES = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", shy: "\u00ad",
  copy: "©", reg: "®", trade: "™", hellip: "…", mdash: "—", ndash: "–", minus: "−",
  lsquo: "‘", rsquo: "’", sbquo: "‚", ldquo: "“", rdquo: "”", bdquo: "„", laquo: "«", raquo: "»",
  lsaquo: "‹", rsaquo: "›", bull: "•", middot: "·", para: "¶", sect: "§", dagger: "†", Dagger: "‡",
  deg: "°", plusmn: "±", times: "×", divide: "÷", frac12: "½", frac14: "¼", frac34: "¾",
  sup1: "¹", sup2: "²", sup3: "³", micro: "µ", permil: "‰", prime: "′", Prime: "″",
  cent: "¢", pound: "£", yen: "¥", euro: "€", curren: "¤", iexcl: "¡", iquest: "¿",
  larr: "←", uarr: "↑", rarr: "→", darr: "↓", harr: "↔", lArr: "⇐", rArr: "⇒", hArr: "⇔",
  forall: "∀", exist: "∃", empty: "∅", isin: "∈", notin: "∉", sum: "∑", prod: "∏", radic: "√",
  infin: "∞", and: "∧", or: "∨", cap: "∩", cup: "∪", int: "∫", asymp: "≈", ne: "≠", equiv: "≡",
  le: "≤", ge: "≥", sub: "⊂", sup: "⊃", part: "∂", nabla: "∇", not: "¬",
  alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ε", theta: "θ", lambda: "λ", mu: "μ",
  pi: "π", sigma: "σ", tau: "τ", phi: "φ", omega: "ω", Delta: "Δ", Sigma: "Σ", Omega: "Ω",
  auml: "ä", ouml: "ö", uuml: "ü", Auml: "Ä", Ouml: "Ö", Uuml: "Ü", szlig: "ß", aring: "å",
  Aring: "Å", aelig: "æ", AElig: "Æ", oslash: "ø", Oslash: "Ø", eacute: "é", egrave: "è",
  ecirc: "ê", agrave: "à", aacute: "á", acirc: "â", ccedil: "ç", ntilde: "ñ", iacute: "í",
  oacute: "ó", uacute: "ú", check: "✓", cross: "✗", star: "☆", hearts: "♥", zwj: "\u200d",
  zwnj: "\u200c", ensp: "\u2002", emsp: "\u2003", thinsp: "\u2009",
};

export const ENTITY = /&(?:#[xX]([0-9a-fA-F]{1,6})|#([0-9]{1,7})|([a-zA-Z][a-zA-Z0-9]{1,31}));/y;
const ESCAPED = new RegExp(`\\\\([!-/:-@[-\`{-~])|${ENTITY.source}`, "g");

/** Returns the character of a reference that ENTITY matched, or null for an unknown name. */
export function referred(match, at = 1) {
  const [hex, decimal, name] = [match[at], match[at + 1], match[at + 2]];
  if (name !== undefined) return Object.hasOwn(NAMES, name) ? NAMES[name] : null;
  const code = hex !== undefined ? parseInt(hex, 16) : parseInt(decimal, 10);
  const isText = code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return isText ? String.fromCodePoint(code) : "\ufffd";
}

/** Resolves the escapes and references of a text, as in addresses, titles and code infos. */
export function unescaped(text) {
  if (!/[\\&]/.test(text)) return text;
  return text.replace(ESCAPED, (all, mark, ...groups) =>
    mark !== undefined ? mark : (referred(groups, 0) ?? all),
  );
}
