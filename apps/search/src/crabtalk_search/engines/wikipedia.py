"""Wikipedia: articles of the English one whose titles fit. An API, made for this."""

from dataclasses import dataclass
from typing import Any

from crabtalk_search.errors import EngineError
from crabtalk_search.hit import Hit
from crabtalk_search.web import Web

from .engine import usable

MOST = 10
# Its operators ask every program to say what it is.
HEADERS = {"User-Agent": "crabtalk-search (an open source agent daemon's search component)"}


@dataclass(frozen=True, slots=True)
class Wikipedia:
    url: str = "https://en.wikipedia.org/w/api.php"
    id: str = "wikipedia"
    has_pages: bool = False

    async def search(self, web: Web, query: str, page: int) -> list[Hit]:
        asked = {"action": "opensearch", "search": query, "limit": str(MOST), "format": "json"}
        return read(await web.get_json(self.url, headers=HEADERS, **asked))


def read(answer: Any) -> list[Hit]:
    """Four lists side by side: the question, then titles, descriptions and addresses."""
    match answer:
        case [_, [*titles], [*descriptions], [*urls]]:
            rows = zip(titles, urls, descriptions, strict=False)
            return usable(Hit(*map(str, row)) for row in rows)
    raise EngineError("its answer has a shape we do not know; leave it out of `engines`")
