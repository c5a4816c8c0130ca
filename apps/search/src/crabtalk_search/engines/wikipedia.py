"""Wikipedia: English articles with matching titles, through its search API."""

from dataclasses import dataclass
from typing import Any

from crabtalk_search.engine_client import EngineClient
from crabtalk_search.engine_hit import EngineHit
from crabtalk_search.errors import EngineError

from .engine import filter_usable

MAX_RESULTS = 10
# Wikipedia asks every program to identify itself.
HEADERS = {"User-Agent": "crabtalk-search (an open source agent daemon's search component)"}


@dataclass(frozen=True, slots=True)
class WikipediaEngine:
    url: str = "https://en.wikipedia.org/w/api.php"
    id: str = "wikipedia"
    has_pages: bool = False

    async def search(self, web: EngineClient, query: str, page: int) -> list[EngineHit]:
        parameters = {
            "action": "opensearch",
            "search": query,
            "limit": str(MAX_RESULTS),
            "format": "json",
        }
        return parse_results(await web.get_json(self.url, headers=HEADERS, **parameters))


def parse_results(answer: Any) -> list[EngineHit]:
    """The answer has four parallel lists: the query, titles, descriptions and addresses."""
    match answer:
        case [_, [*titles], [*descriptions], [*urls]]:
            rows = zip(titles, urls, descriptions, strict=False)
            return filter_usable(EngineHit(*map(str, row)) for row in rows)
    raise EngineError("its answer has a shape we do not know; leave it out of `engines`")
