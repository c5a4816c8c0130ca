"""DuckDuckGo: the lite page, and if that is refused, the HTML page without scripts."""

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from selectolax.lexbor import LexborHTMLParser, LexborNode

from crabtalk_search.engine_client import EngineClient
from crabtalk_search.engine_hit import EngineHit
from crabtalk_search.errors import EngineError

from .engine import extract_text, filter_usable, require_results

NO_RESULTS_PHRASES = ("no results.", "no more results", "no results found for")


@dataclass(frozen=True, slots=True)
class DuckDuckGoEngine:
    lite: str = "https://lite.duckduckgo.com/lite/"
    html: str = "https://html.duckduckgo.com/html/"
    id: str = "duck_duck_go"
    has_pages: bool = False

    async def search(self, web: EngineClient, query: str, page: int) -> list[EngineHit]:
        try:
            return parse_lite_results(await web.get_page(self.lite, q=query))
        except EngineError:
            return parse_html_results(await web.get_page(self.html, q=query))


def parse_lite_results(html: str) -> list[EngineHit]:
    """Results are in a table: one row for the link, one for the snippet."""
    page = LexborHTMLParser(html)
    hits = filter_usable(
        EngineHit(extract_text(link), resolve_link(link), extract_text(find_snippet(link)))
        for link in page.css("tr:not(.result-sponsored) a.result-link")
    )
    return require_results(hits, page, NO_RESULTS_PHRASES)


def parse_html_results(html: str) -> list[EngineHit]:
    page = LexborHTMLParser(html)
    hits = []
    for result in page.css(".result:not(.result--ad)"):
        link = result.css_first("a.result__a")
        if link is not None:
            snippet = result.css_first(".result__snippet")
            hits.append(EngineHit(extract_text(link), resolve_link(link), extract_text(snippet)))
    return require_results(filter_usable(hits), page, NO_RESULTS_PHRASES)


def find_snippet(link: LexborNode) -> LexborNode | None:
    """The snippet in the rows after the link's, before those of the next link."""
    row = link.parent
    while row is not None and row.tag != "tr":
        row = row.parent
    row = row.next if row is not None else None
    while row is not None:
        if row.tag == "tr":
            if row.css_first("a.result-link") is not None:
                return None
            if (snippet := row.css_first("td.result-snippet")) is not None:
                return snippet
        row = row.next
    return None


def resolve_link(link: LexborNode) -> str:
    """The target of a link without the redirect; empty for an advertisement."""
    url = link.attributes.get("href") or ""
    parts = urlsplit(url)
    if parts.path == "/y.js":
        return ""
    if parts.path == "/l/":
        return parse_qs(parts.query).get("uddg", [""])[0]
    return url
