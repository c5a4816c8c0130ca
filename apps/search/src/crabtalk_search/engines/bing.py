"""Bing: ten results a page. Its links go through a redirect with the target in base64."""

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
            description = result.css_first(".b_caption p, .b_lineclamp2, .b_algoSlug")
            for icon in (
                description.css(".algoSlug_icon, .news_dt") if description is not None else ()
            ):
                icon.decompose()
            url = resolve_link(link.attributes.get("href") or "")
            hits.append(EngineHit(extract_text(link), url, extract_text(description)))
    return require_results(filter_usable(hits), page, NO_RESULTS_PHRASES)


def resolve_link(url: str) -> str:
    """The target of a redirect link; other links are returned unchanged."""
    parts = urlsplit(url)
    if parts.path != "/ck/a":
        return url
    coded = parse_qs(parts.query).get("u", [""])[0].removeprefix("a1")
    try:
        return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""
