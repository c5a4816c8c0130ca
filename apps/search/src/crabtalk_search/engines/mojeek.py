"""Mojeek: a search engine with an index of its own, ten results a page."""

from dataclasses import dataclass

from selectolax.lexbor import LexborHTMLParser

from crabtalk_search.engine_client import EngineClient
from crabtalk_search.engine_hit import EngineHit

from .engine import extract_text, filter_usable, require_results

RESULTS_PER_PAGE = 10
NO_RESULTS_PHRASES = ("no pages found",)


@dataclass(frozen=True, slots=True)
class MojeekEngine:
    url: str = "https://www.mojeek.com/search"
    id: str = "mojeek"
    has_pages: bool = True

    async def search(self, web: EngineClient, query: str, page: int) -> list[EngineHit]:
        return parse_results(await web.get_page(self.url, q=query, s=page * RESULTS_PER_PAGE + 1))


def parse_results(html: str) -> list[EngineHit]:
    page = LexborHTMLParser(html)
    hits = []
    for result in page.css("ul.results-standard > li"):
        link = result.css_first("h2 a, a.title")
        if link is not None:
            description = result.css_first("p.s")
            hits.append(
                EngineHit(
                    extract_text(link), link.attributes.get("href") or "", extract_text(description)
                )
            )
    return require_results(filter_usable(hits), page, NO_RESULTS_PHRASES)
