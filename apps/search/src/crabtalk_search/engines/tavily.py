"""Tavily's API, for those who have a key. It has no second page."""

from dataclasses import dataclass, field
from typing import Any

from crabtalk_search.hit import Hit
from crabtalk_search.web import Web

from .engine import listed, plain, usable

MOST = 10


@dataclass(frozen=True, slots=True)
class Tavily:
    key: str = field(repr=False)
    url: str = "https://api.tavily.com/search"
    id: str = "tavily"
    has_pages: bool = False

    async def search(self, web: Web, query: str, page: int) -> list[Hit]:
        headers = {"Authorization": f"Bearer {self.key}"}
        asked = {"query": query, "max_results": MOST}
        return read(await web.post_json(self.url, asked, headers=headers))


def read(answer: Any) -> list[Hit]:
    return usable(
        Hit(plain(entry.get("title")), str(entry.get("url")), plain(entry.get("content")))
        for entry in listed(answer, "results")
    )
