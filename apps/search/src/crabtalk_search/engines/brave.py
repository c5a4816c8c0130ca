"""Brave's HTML pages. With a key, `brave_api` is more reliable."""

from dataclasses import dataclass

from selectolax.lexbor import LexborHTMLParser

from crabtalk_search.engine_client import EngineClient
from crabtalk_search.engine_hit import EngineHit

from .engine import extract_text, filter_usable, require_results

DESCRIPTION = ".snippet-description, .generic-snippet .content, .description"
NO_RESULTS_PHRASES = ("not many great matches", "no results found")


@dataclass(frozen=True, slots=True)
class BraveEngine:
    url: str = "https://search.brave.com/search"
    id: str = "brave"
    has_pages: bool = True

    async def search(self, web: EngineClient, query: str, page: int) -> list[EngineHit]:
        return parse_results(await web.get_page(self.url, q=query, source="web", offset=page))


def parse_results(html: str) -> list[EngineHit]:
    page = LexborHTMLParser(html)
    hits = []
    for result in page.css('div.snippet[data-type="web"]'):
        link = result.css_first("a[href]")
        if link is not None:
            title = result.css_first(".title, .snippet-title") or link
            description = result.css_first(DESCRIPTION)
            hits.append(
                EngineHit(
                    extract_text(title), link.attributes["href"] or "", extract_text(description)
                )
            )
    return require_results(filter_usable(hits), page, NO_RESULTS_PHRASES)
