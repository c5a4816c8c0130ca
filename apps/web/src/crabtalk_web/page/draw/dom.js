// Creates elements without markup: all that the page shows is made here of names, attributes and
// text nodes, so foreign text can only become text.

// The names of two namespaces; no request is ever sent there.
const SVG = ["http:", "", "www.w3.org", "2000", "svg"].join("/");

const FORBIDDEN_TAGS = new Set([
  "script", "style", "iframe", "frame", "object", "embed", "base", "meta", "link", "template",
  "foreignobject", "use", "animate", "set", "portal", "math",
]);
const ADDRESSES = new Set(["href", "src", "poster", "action", "formaction", "data", "xlink:href"]);
// The schemes that an element may point to: web, mail, and blobs of this page.
const SCHEMES = new Set(["http:", "https:", "mailto:", "blob:"]);

/**
 * Creates an element. Props: `class`, attributes by their names, `style` as an object of
 * properties, `dataset` as an object, and `onClick`-like functions. False, null and undefined leave
 * a prop out, true is an empty attribute. Children: nodes, texts, numbers, and arrays of them.
 * @returns {HTMLElement}
 */
export function h(tag, props, ...children) {
  return filled(document.createElement(allowed(tag)), props, children);
}

/** Creates an SVG element. @returns {SVGElement} */
export function svg(tag, props, ...children) {
  return filled(document.createElementNS(SVG, allowed(tag)), props, children);
}

/** Replaces all children. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/**
 * Changes the children of an element to these, in this order. Old children are removed first, so
 * that the others need not move: a moved node loses focus and scroll position.
 */
export function arrange(parent, nodes) {
  const kept = new Set(nodes);
  for (const child of [...parent.childNodes]) if (!kept.has(child)) child.remove();
  let at = parent.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
}

/** Sets a text only if it differs, so that nothing is announced or laid out again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Whether an element may point there. Relative addresses stay on this page's own origin. */
function isSafeAddress(address) {
  try {
    return SCHEMES.has(new URL(address, document.baseURI).protocol);
  } catch {
    return false;
  }
}

function allowed(tag) {
  if (FORBIDDEN_TAGS.has(tag.toLowerCase())) throw new Error(`no <${tag}> is made here`);
  return tag;
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) setProp(element, name, value);
  append(element, children);
  return element;
}

function setProp(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (typeof value === "function") {
    element.addEventListener(name.replace(/^on/, "").toLowerCase(), value);
  } else if (name === "style") {
    for (const [key, entry] of Object.entries(value)) element.style.setProperty(key, entry);
  } else if (name === "dataset") {
    Object.assign(element.dataset, value);
  } else {
    setAttribute(element, name, value);
  }
}

function setAttribute(element, name, value) {
  const lower = name.toLowerCase();
  if (lower.startsWith("on") || lower === "srcdoc" || lower === "style") {
    throw new Error(`the attribute ${name} takes no text here`);
  }
  if (ADDRESSES.has(lower) && !isSafeAddress(String(value))) return;
  element.setAttribute(name, value === true ? "" : String(value));
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}
