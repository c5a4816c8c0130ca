"""Brave's API, for those who have a key."""

from dataclasses import dataclass, field
from typing import Any

from crabtalk_search.hit import Hit
from crabtalk_search.web import Web

from .engine import listed, plain, usable


@dataclass(frozen=True, slots=True)
class BraveApi:
    key: str = field(repr=False)
    url: str = "https://api.search.brave.com/res/v1/web/search"
    id: str = "brave_api"
    has_pages: bool = True

    async def search(self, web: Web, query: str, page: int) -> list[Hit]:
        headers = {"X-Subscription-Token": self.key, "Accept": "application/json"}
        return read(await web.get_json(self.url, headers=headers, q=query, count=20, offset=page))


def read(answer: Any) -> list[Hit]:
    return usable(
        Hit(plain(entry.get("title")), str(entry.get("url")), plain(entry.get("description")))
        for entry in listed(answer, "web", "results")
    )
