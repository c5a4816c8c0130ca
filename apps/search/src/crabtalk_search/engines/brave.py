"""Brave: its pages for people. With a key, `brave_api` is the better way."""

from dataclasses import dataclass

from selectolax.lexbor import LexborHTMLParser

from crabtalk_search.hit import Hit
from crabtalk_search.web import Web

from .engine import not_nothing, text_of, usable

DESCRIPTION = ".snippet-description, .generic-snippet .content, .description"
NOTHING = ("not many great matches", "no results found")


@dataclass(frozen=True, slots=True)
class Brave:
    url: str = "https://search.brave.com/search"
    id: str = "brave"
    has_pages: bool = True

    async def search(self, web: Web, query: str, page: int) -> list[Hit]:
        return read(await web.page(self.url, q=query, source="web", offset=page))


def read(html: str) -> list[Hit]:
    page = LexborHTMLParser(html)
    hits = []
    for result in page.css('div.snippet[data-type="web"]'):
        link = result.css_first("a[href]")
        if link is not None:
            title = result.css_first(".title, .snippet-title") or link
            about = result.css_first(DESCRIPTION)
            hits.append(Hit(text_of(title), link.attributes["href"] or "", text_of(about)))
    return not_nothing(usable(hits), page, NOTHING)
