// Returns what a conversation must never contain, whatever was written.
() => {
  const log = document.querySelector("[role=log]");
  const named = "script, iframe, object, embed, base, meta, link, style, svg a, form[action], video";
  const all = [...log.querySelectorAll("*")];
  const links = [...log.querySelectorAll("a[href]")];
  const sources = [...log.querySelectorAll("[src], [srcset], [background], [poster]")];
  return {
    elements: [...log.querySelectorAll(named)].map((element) => element.localName),
    handlers: all.flatMap((element) => element.getAttributeNames())
      .filter((name) => name.startsWith("on") || name === "srcdoc"),
    protocols: [...new Set(links.map((link) => link.protocol))],
    loose: links.filter((link) => link.origin !== location.origin
      && !link.rel.includes("noopener")).length,
    sources: sources.map((element) => element.getAttribute("src") ?? "none"),
    pwned: window.pwned ?? null,
  };
}
