"""The engine interface, and helpers for parsing. Each engine is a module: its request and parser.

Engines know nothing of each other, and any of them may fail alone.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from selectolax.lexbor import LexborHTMLParser, LexborNode

from crabtalk_search.engine_client import EngineClient
from crabtalk_search.engine_hit import EngineHit
from crabtalk_search.errors import EngineError


class SearchEngine(Protocol):
    """A web search engine."""

    @property
    def id(self) -> str:
        """Its name in the configuration."""

    @property
    def has_pages(self) -> bool:
        """Whether it has more than one page of results. If not, it is only asked for page 0."""

    async def search(self, web: EngineClient, query: str, page: int) -> list[EngineHit]:
        """The hits on a page; the first page is 0. Raises EngineError."""


def extract_text(node: LexborNode | None) -> str:
    """The text of a node with single spaces; empty for None."""
    return " ".join(node.text(separator="").split()) if node is not None else ""


def filter_usable(hits: Iterable[EngineHit]) -> list[EngineHit]:
    """Leave out hits without a title or a web address."""
    return [hit for hit in hits if hit.title and hit.url.startswith(("http://", "https://"))]


def require_results(
    hits: list[EngineHit], page: LexborHTMLParser, no_results_phrases: tuple[str, ...]
) -> list[EngineHit]:
    """Return the hits. An empty list counts only if the page has one of `no_results_phrases`.

    Otherwise the page cannot be parsed: it is a captcha, or has a new layout.
    """
    if not hits:
        text = extract_text(page.body).lower()
        if not any(phrase in text for phrase in no_results_phrases):
            raise EngineError(
                "no results on its page: it may ask for a captcha, or have a new layout; "
                "try again later, or leave it out of `engines`"
            )
    return hits


def get_objects(answer: Any, *path: str) -> list[dict[str, Any]]:
    """The list of objects at `path` in a JSON answer; empty if there is none."""
    for name in path:
        answer = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(answer, list):
        return []
    return [entry for entry in answer if isinstance(entry, dict)]


def to_plain_text(value: Any) -> str:
    """A text of a JSON answer, without the tags that some engines put around matches."""
    if not isinstance(value, str):
        return ""
    if "<" in value or "&" in value:
        value = extract_text(LexborHTMLParser(value).body)
    return " ".join(value.split())
