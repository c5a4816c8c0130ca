// Builds a tree of limited depth from the pieces of a text: content that is nested deeper moves up
// into its container.

const DEEPEST = 24;

/** Builds nodes {type, children | parts | text, address, title} from pieces that open and close. */
export function tree(pieces) {
  const root = { children: [] };
  const open = [root];
  let beyond = 0;
  const enter = (node) => {
    if (open.length > DEEPEST) {
      beyond += 1;
      return;
    }
    open[open.length - 1].children.push(node);
    open.push(node);
  };
  const leave = () => {
    if (beyond > 0) beyond -= 1;
    else open.pop();
  };
  const say = (text) => {
    const siblings = open[open.length - 1].children;
    const last = siblings[siblings.length - 1];
    if (last?.type === "text") last.parts.push(text);
    else siblings.push({ type: "text", parts: [text] });
  };
  for (const piece of pieces) {
    if (piece.kind === "text") {
      if (piece.text) say(piece.text);
    } else if (piece.kind === "leaf") {
      open[open.length - 1].children.push({ type: piece.type, text: piece.text });
    } else if (piece.kind === "open") {
      enter({ type: piece.type, address: piece.address, title: piece.title, children: [] });
    } else if (piece.kind === "close") {
      leave();
    } else {
      piece.closes.forEach(leave);
      if (piece.count > 0) say(piece.char.repeat(piece.count));
      piece.opens.forEach((type) => enter({ type, children: [] }));
    }
  }
  return root.children;
}

/** Returns the text of a tree, without marks. */
export function plainText(nodes) {
  let text = "";
  const left = [...nodes].reverse();
  while (left.length) {
    const node = left.pop();
    if (node.type === "text") text += node.parts.join("");
    else if (node.type === "code") text += node.text;
    else if (node.children) left.push(...[...node.children].reverse());
    else text += " ";
  }
  return text;
}
