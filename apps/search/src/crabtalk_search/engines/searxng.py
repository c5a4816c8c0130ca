"""SearXNG: a metasearch server that the user runs or trusts. It must allow JSON."""

from dataclasses import dataclass
from typing import Any

from crabtalk_search.engine_client import EngineClient
from crabtalk_search.engine_hit import EngineHit

from .engine import filter_usable, get_objects, to_plain_text


@dataclass(frozen=True, slots=True)
class SearxngEngine:
    url: str
    id: str = "searxng"
    has_pages: bool = True

    async def search(self, web: EngineClient, query: str, page: int) -> list[EngineHit]:
        url = f"{self.url.rstrip('/')}/search"
        return parse_results(await web.get_json(url, q=query, format="json", pageno=page + 1))


def parse_results(answer: Any) -> list[EngineHit]:
    return filter_usable(
        EngineHit(
            to_plain_text(entry.get("title")),
            str(entry.get("url")),
            to_plain_text(entry.get("content")),
        )
        for entry in get_objects(answer, "results")
    )
