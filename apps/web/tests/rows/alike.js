// Returns our rendering of markdown in a form that can be compared with another reader's.
(texts) => {
  const form = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return [node.data];
    const inner = [...node.childNodes].flatMap(form);
    const tag = node.localName;
    if (node.matches(".code-block")) return [["pre", node.querySelector("pre").textContent]];
    if (node.matches("div.table, .tight, .leads-to, .task > div")) return inner;
    if (node.matches(".picture-link, .is-picture")) return [["img", node.textContent]];
    if (node.matches(".no-link")) return [["a", ...inner]];
    const level = /heading-(\d)/.exec(node.className);
    return [[level ? `h${level[1]}` : tag, ...inner]];
  };
  return texts.map((text) => {
    const element = rows.markdown.renderMarkdown(text);
    return [...element.childNodes].flatMap(form);
  });
}
