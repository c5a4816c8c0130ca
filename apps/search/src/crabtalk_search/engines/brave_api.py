"""Brave's API. It needs a key."""

from dataclasses import dataclass, field
from typing import Any

from crabtalk_search.engine_client import EngineClient
from crabtalk_search.engine_hit import EngineHit

from .engine import filter_usable, get_objects, to_plain_text


@dataclass(frozen=True, slots=True)
class BraveApiEngine:
    key: str = field(repr=False)
    url: str = "https://api.search.brave.com/res/v1/web/search"
    id: str = "brave_api"
    has_pages: bool = True

    async def search(self, web: EngineClient, query: str, page: int) -> list[EngineHit]:
        headers = {"X-Subscription-Token": self.key, "Accept": "application/json"}
        return parse_results(
            await web.get_json(self.url, headers=headers, q=query, count=20, offset=page)
        )


def parse_results(answer: Any) -> list[EngineHit]:
    return filter_usable(
        EngineHit(
            to_plain_text(entry.get("title")),
            str(entry.get("url")),
            to_plain_text(entry.get("description")),
        )
        for entry in get_objects(answer, "web", "results")
    )
