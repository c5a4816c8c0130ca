"""Mojeek: an index of its own, ten results a page."""

from dataclasses import dataclass

from selectolax.lexbor import LexborHTMLParser

from crabtalk_search.hit import Hit
from crabtalk_search.web import Web

from .engine import not_nothing, text_of, usable

A_PAGE = 10
NOTHING = ("no pages found",)


@dataclass(frozen=True, slots=True)
class Mojeek:
    url: str = "https://www.mojeek.com/search"
    id: str = "mojeek"
    has_pages: bool = True

    async def search(self, web: Web, query: str, page: int) -> list[Hit]:
        return read(await web.page(self.url, q=query, s=page * A_PAGE + 1))


def read(html: str) -> list[Hit]:
    page = LexborHTMLParser(html)
    hits = []
    for result in page.css("ul.results-standard > li"):
        link = result.css_first("h2 a, a.title")
        if link is not None:
            about = result.css_first("p.s")
            hits.append(Hit(text_of(link), link.attributes.get("href") or "", text_of(about)))
    return not_nothing(usable(hits), page, NOTHING)
