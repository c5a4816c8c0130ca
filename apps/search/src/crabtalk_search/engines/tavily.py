"""Tavily's API. It needs a key, and has no second page."""

from dataclasses import dataclass, field
from typing import Any

from crabtalk_search.engine_client import EngineClient
from crabtalk_search.engine_hit import EngineHit

from .engine import filter_usable, get_objects, to_plain_text

MAX_RESULTS = 10


@dataclass(frozen=True, slots=True)
class TavilyEngine:
    key: str = field(repr=False)
    url: str = "https://api.tavily.com/search"
    id: str = "tavily"
    has_pages: bool = False

    async def search(self, web: EngineClient, query: str, page: int) -> list[EngineHit]:
        headers = {"Authorization": f"Bearer {self.key}"}
        query_body = {"query": query, "max_results": MAX_RESULTS}
        return parse_results(await web.post_json(self.url, query_body, headers=headers))


def parse_results(answer: Any) -> list[EngineHit]:
    return filter_usable(
        EngineHit(
            to_plain_text(entry.get("title")),
            str(entry.get("url")),
            to_plain_text(entry.get("content")),
        )
        for entry in get_objects(answer, "results")
    )
