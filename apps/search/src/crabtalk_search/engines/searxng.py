"""SearXNG: a metasearch of one's own, or of somebody one trusts. It must allow JSON."""

from dataclasses import dataclass
from typing import Any

from crabtalk_search.hit import Hit
from crabtalk_search.web import Web

from .engine import listed, plain, usable


@dataclass(frozen=True, slots=True)
class Searxng:
    url: str
    id: str = "searxng"
    has_pages: bool = True

    async def search(self, web: Web, query: str, page: int) -> list[Hit]:
        url = f"{self.url.rstrip('/')}/search"
        return read(await web.get_json(url, q=query, format="json", pageno=page + 1))


def read(answer: Any) -> list[Hit]:
    return usable(
        Hit(plain(entry.get("title")), str(entry.get("url")), plain(entry.get("content")))
        for entry in listed(answer, "results")
    )
