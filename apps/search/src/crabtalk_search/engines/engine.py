"""Engine: whoever can be asked. Each is a module: how it is asked, and how its answer is read."""

from collections.abc import Iterable
from typing import Any, Protocol

from selectolax.lexbor import LexborHTMLParser, LexborNode

from crabtalk_search.engine_client import EngineClient
from crabtalk_search.engine_hit import EngineHit
from crabtalk_search.errors import EngineError


class SearchEngine(Protocol):
    """Knows nothing of the others, and may fail alone."""

    @property
    def id(self) -> str:
        """What the configuration calls it."""

    @property
    def has_pages(self) -> bool:
        """Whether it has more than a first page. It is not asked for others if not."""

    async def search(self, web: EngineClient, query: str, page: int) -> list[EngineHit]:
        """The hits on that page, the first being 0. Raises EngineError."""


def extract_text(node: LexborNode | None) -> str:
    """Its text with single blanks; nothing for no node."""
    return " ".join(node.text(separator="").split()) if node is not None else ""


def filter_usable(hits: Iterable[EngineHit]) -> list[EngineHit]:
    """Without those that lead nowhere."""
    return [hit for hit in hits if hit.title and hit.url.startswith(("http://", "https://"))]


def require_results(
    hits: list[EngineHit], page: LexborHTMLParser, nothing: tuple[str, ...]
) -> list[EngineHit]:
    """The hits. None at all is an answer only where the page says so, in one of these words.

    Otherwise it is a page we cannot read: a captcha, or a new layout.
    """
    if not hits:
        text = extract_text(page.body).lower()
        if not any(words in text for words in nothing):
            raise EngineError(
                "no results on its page: it may ask for a captcha, or have a new layout; "
                "try again later, or leave it out of `engines`"
            )
    return hits


def get_objects(answer: Any, *path: str) -> list[dict[str, Any]]:
    """The list of objects at `path` in what a JSON engine sent; empty where there is none."""
    for name in path:
        answer = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(answer, list):
        return []
    return [entry for entry in answer if isinstance(entry, dict)]


def to_plain_text(value: Any) -> str:
    """A text of a JSON engine, without the tags some put around matches."""
    if not isinstance(value, str):
        return ""
    if "<" in value or "&" in value:
        value = extract_text(LexborHTMLParser(value).body)
    return " ".join(value.split())
