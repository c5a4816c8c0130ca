"""Bing: ten results a page. Its links go through a counter, and carry the address in base64."""

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from selectolax.lexbor import LexborHTMLParser

from crabtalk_search.hit import Hit
from crabtalk_search.web import Web

from .engine import not_nothing, text_of, usable

A_PAGE = 10
NOTHING = ("there are no results for", "no results found for")


@dataclass(frozen=True, slots=True)
class Bing:
    url: str = "https://www.bing.com/search"
    id: str = "bing"
    has_pages: bool = True

    async def search(self, web: Web, query: str, page: int) -> list[Hit]:
        return read(await web.page(self.url, q=query, first=page * A_PAGE + 1, count=A_PAGE))


def read(html: str) -> list[Hit]:
    page = LexborHTMLParser(html)
    hits = []
    for result in page.css("li.b_algo"):
        link = result.css_first("h2 a")
        if link is not None:
            about = result.css_first(".b_caption p, .b_lineclamp2, .b_algoSlug")
            for mark in about.css(".algoSlug_icon, .news_dt") if about is not None else ():
                mark.decompose()
            address = followed(link.attributes.get("href") or "")
            hits.append(Hit(text_of(link), address, text_of(about)))
    return not_nothing(usable(hits), page, NOTHING)


def followed(url: str) -> str:
    """Where a link of the counter leads; any other link leads where it says."""
    parts = urlsplit(url)
    if parts.path != "/ck/a":
        return url
    coded = parse_qs(parts.query).get("u", [""])[0].removeprefix("a1")
    try:
        return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""
