"""Bing: ten results a page. Its links go through a counter, and carry the address in base64."""

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from selectolax.lexbor import LexborHTMLParser

from crabtalk_search.engine_client import EngineClient
from crabtalk_search.engine_hit import EngineHit

from .engine import extract_text, filter_usable, require_results

RESULTS_PER_PAGE = 10
NO_RESULTS_PHRASES = ("there are no results for", "no results found for")


@dataclass(frozen=True, slots=True)
class BingEngine:
    url: str = "https://www.bing.com/search"
    id: str = "bing"
    has_pages: bool = True

    async def search(self, web: EngineClient, query: str, page: int) -> list[EngineHit]:
        return parse_results(
            await web.get_page(
                self.url, q=query, first=page * RESULTS_PER_PAGE + 1, count=RESULTS_PER_PAGE
            )
        )


def parse_results(html: str) -> list[EngineHit]:
    page = LexborHTMLParser(html)
    hits = []
    for result in page.css("li.b_algo"):
        link = result.css_first("h2 a")
        if link is not None:
            about = result.css_first(".b_caption p, .b_lineclamp2, .b_algoSlug")
            for mark in about.css(".algoSlug_icon, .news_dt") if about is not None else ():
                mark.decompose()
            address = resolve_link(link.attributes.get("href") or "")
            hits.append(EngineHit(extract_text(link), address, extract_text(about)))
    return require_results(filter_usable(hits), page, NO_RESULTS_PHRASES)


def resolve_link(url: str) -> str:
    """Where a link of the counter leads; any other link leads where it says."""
    parts = urlsplit(url)
    if parts.path != "/ck/a":
        return url
    coded = parse_qs(parts.query).get("u", [""])[0].removeprefix("a1")
    try:
        return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""
