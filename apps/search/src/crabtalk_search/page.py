"""Extracts the readable part of an HTML document as Markdown.

Runs in a process of its own (`python -m crabtalk_search.page`): a malicious page can make parsing
take minutes or gigabytes, and the parsers are native code. The system's resource limits apply.
"""

import json
import sys

from html_to_markdown import ConversionOptions, convert
from selectolax.lexbor import LexborHTMLParser, LexborNode

from .text_decoding import decode_text

CPU_SECONDS = 10
MAX_MEMORY = 1024 * 1024 * 1024
MAX_TITLE = 500
# Elements that are not content: layout, scripts and navigation.
DROPPED_SELECTOR = "script, style, nav, footer, aside, noscript, svg, iframe, template, [hidden]"


def main() -> None:
    """`page LIMIT URL [CHARSET]`: a document on stdin, its title and text as JSON on stdout.

    The text is cut to `LIMIT` characters, so that the parent is not flooded either.
    """
    limit, url, charset = int(sys.argv[1]), sys.argv[2], " ".join(sys.argv[3:]) or None
    set_resource_limits()
    title, content = extract_readable(decode_text(sys.stdin.buffer.read(), charset), url)
    answer = {"title": title[:MAX_TITLE], "content": content[:limit], "length": len(content)}
    sys.stdout.write(json.dumps(answer))


def set_resource_limits() -> None:
    try:
        import resource
    except ImportError:  # not on Windows, where the parent's deadline has to do
        return
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def extract_readable(html: str, url: str) -> tuple[str, str]:
    """The title and the text. Links are made absolute, pictures are left out."""
    page = LexborHTMLParser(html)
    title = find_title(page)
    for node in page.css(DROPPED_SELECTOR):
        node.decompose()
    body = page.body
    if body is None:
        return title, ""
    drop_headers(body)
    drop_forms(body)
    part = find_main_part(body)
    options = ConversionOptions(
        skip_images=True, extract_metadata=False, base_url=url, compact_tables=True
    )
    return title, (convert(part.html or "", options).content or "").strip()


def find_title(page: LexborHTMLParser) -> str:
    for selector, attribute in (("head > title", None), ('meta[property="og:title"]', "content")):
        if (node := page.css_first(selector)) is not None:
            text = node.text() if attribute is None else node.attributes.get(attribute) or ""
            if text.strip():
                return " ".join(text.split())
    heading = page.css_first("h1")
    return " ".join(heading.text().split()) if heading is not None else ""


def drop_headers(body: LexborNode) -> None:
    """Remove the headers of the page. Those of an article stay."""
    for header in body.css("header"):
        if header.css_first("h1") is None or not is_within(header, "article", "main"):
            header.decompose()


def is_within(node: LexborNode, *tags: str) -> bool:
    ancestor = node.parent
    while ancestor is not None:
        if ancestor.tag in tags:
            return True
        ancestor = ancestor.parent
    return False


def drop_forms(body: LexborNode) -> None:
    """Remove forms. One with most of the text is unwrapped: some servers put the page into one."""
    size = len(body.text())
    for form in body.css("form"):
        if len(form.text()) * 2 < size:
            form.decompose()
        else:
            form.unwrap()


def find_main_part(body: LexborNode) -> LexborNode:
    """The element that is marked as the content, if it has at least half of the text."""
    size = len(body.text())
    for selector in ("main", "[role=main]", "article"):
        for node in body.css(selector):
            if len(node.text()) * 2 >= size:
                return node
    return body


if __name__ == "__main__":
    main()
