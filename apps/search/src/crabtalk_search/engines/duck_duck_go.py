"""DuckDuckGo: the page for small screens, and if that refuses, the one without scripts."""

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from selectolax.lexbor import LexborHTMLParser, LexborNode

from crabtalk_search.errors import EngineError
from crabtalk_search.hit import Hit
from crabtalk_search.web import Web

from .engine import not_nothing, text_of, usable

NOTHING = ("no results.", "no more results", "no results found for")


@dataclass(frozen=True, slots=True)
class DuckDuckGo:
    lite: str = "https://lite.duckduckgo.com/lite/"
    html: str = "https://html.duckduckgo.com/html/"
    id: str = "duck_duck_go"
    has_pages: bool = False

    async def search(self, web: Web, query: str, page: int) -> list[Hit]:
        try:
            return read_lite(await web.page(self.lite, q=query))
        except EngineError:
            return read_html(await web.page(self.html, q=query))


def read_lite(html: str) -> list[Hit]:
    """A table: one row for the link, one for what the page says."""
    page = LexborHTMLParser(html)
    hits = usable(
        Hit(text_of(link), followed(link), text_of(snippet_below(link)))
        for link in page.css("tr:not(.result-sponsored) a.result-link")
    )
    return not_nothing(hits, page, NOTHING)


def read_html(html: str) -> list[Hit]:
    page = LexborHTMLParser(html)
    hits = []
    for result in page.css(".result:not(.result--ad)"):
        link = result.css_first("a.result__a")
        if link is not None:
            about = result.css_first(".result__snippet")
            hits.append(Hit(text_of(link), followed(link), text_of(about)))
    return not_nothing(usable(hits), page, NOTHING)


def snippet_below(link: LexborNode) -> LexborNode | None:
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


def followed(link: LexborNode) -> str:
    """Where it leads without the detour; an advertisement leads nowhere."""
    url = link.attributes.get("href") or ""
    parts = urlsplit(url)
    if parts.path == "/y.js":
        return ""
    if parts.path == "/l/":
        return parse_qs(parts.query).get("uddg", [""])[0]
    return url
