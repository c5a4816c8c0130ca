"""Another markdown reader, and a form in which its result can be compared with ours."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from markdown_it import MarkdownIt

TAGS = {"s": "del"}
OURS = Path(__file__).with_name("alike.js").read_text().partition("\n")[2]


def make_reader() -> MarkdownIt:
    """CommonMark without HTML. It may link anywhere: our restrictions have their own tests."""
    reader = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    reader.validateLink = lambda url: True  # type: ignore[method-assign]
    return reader


def parse_reference(html: str) -> list[Any]:
    root = ElementTree.fromstring(f"<div>{html}</div>")  # noqa: S314 - written by our own tests
    return normalize_parts(read_children(root))


def read_children(element: ElementTree.Element) -> list[Any]:
    parts: list[Any] = [element.text or ""]
    for child in element:
        parts += [read_element(child), child.tail or ""]
    return parts


def read_element(element: ElementTree.Element) -> list[Any]:
    if element.tag == "img":
        return ["img", element.get("alt") or ""]
    if element.tag == "pre":
        return ["pre", "".join(element.itertext()).removesuffix("\n")]
    return [TAGS.get(element.tag, element.tag), *read_children(element)]


def normalize_parts(parts: list[Any]) -> list[Any]:
    """White space between blocks is ignored; adjacent texts are joined."""
    joined: list[Any] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    tidy = [
        re.sub(r"\s+", " ", part).strip()
        if isinstance(part, str)
        else [part[0], *normalize_parts(part[1:])]
        for part in joined
    ]
    return [part for part in tidy if part not in ("", ["img"])]
