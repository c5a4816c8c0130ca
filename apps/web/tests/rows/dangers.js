// Returns what foreign text must never bring into the page. It should be empty.
() => {
  const TAGS = new Set(`a b bdi blockquote br button canvas code dd del details div dl dt em fieldset
    form h3 h4 h5 h6 hr img input ins label legend li mark ol p path pre progress span strong summary
    svg table tbody td textarea th thead tr ul`.split(/\s+/));
  const ATTRIBUTES = /^(?:class|dir|title|href|rel|target|role|tabindex|start|scope|type|id|for|name|value|rows|max|maxlength|novalidate|hidden|open|alt|src|download|disabled|style|width|height|viewBox|d|fill|stroke|stroke-\w+|focusable|aria-[\w-]+|data-(?:row|state|kind|language|code|since))$/;
  const found = [];
  if (globalThis.pwned !== undefined) found.push("a script ran");
  for (const element of rows.shelf.querySelectorAll("*")) {
    if (!TAGS.has(element.localName)) found.push(`<${element.localName}>`);
    for (const { name, value } of element.attributes) {
      if (!ATTRIBUTES.test(name)) found.push(`${element.localName}[${name}]`);
      if (name === "href" && !/^(?:https?:|mailto:)/.test(value)) found.push(`href ${value}`);
      if (name === "src" && !/^blob:/.test(value)) found.push(`src ${value}`);
      if (name === "style" && !/^(?:--(?:hue|ratio|width): ?[\d.]+(?:px)?;? ?)+$/.test(value)) found.push(value);
    }
    if (element.localName === "a" && element.rel !== "noopener noreferrer") found.push("a link with an opener");
    if (element.attachShadow && element.shadowRoot) found.push("a shadow");
  }
  return found;
}
