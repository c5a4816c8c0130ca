"""The tools `search` and `fetch`, and their results as JSON and as text."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict

from .config import SearchConfig
from .engine_client import EngineClient
from .errors import FetchError, SearchError
from .fetcher import FetchedPage, PageFetcher
from .metasearch import Metasearch, SearchAnswer


class SearchTools:
    """The tools; usable until the context of `open_tools` ends."""

    def __init__(self, metasearch: Metasearch, fetcher: PageFetcher) -> None:
        self._metasearch = metasearch
        self._fetcher = fetcher

    async def search(self, query: str, page: int = 0) -> SearchAnswer:
        """Raises SearchError with the prefix that agents know."""
        try:
            return await self._metasearch.search(query, page)
        except SearchError as error:
            raise SearchError(f"search error: {error}") from None

    async def fetch(self, url: str) -> FetchedPage:
        try:
            return await self._fetcher.fetch(url)
        except FetchError as error:
            raise FetchError(f"fetch error: {error}") from None


@asynccontextmanager
async def open_tools(config: SearchConfig) -> AsyncIterator[SearchTools]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(EngineClient(config.timeout))
        fetcher = await stack.enter_async_context(PageFetcher(config.fetch))
        yield SearchTools(Metasearch(config, client), fetcher)


def to_json(value: SearchAnswer | FetchedPage) -> str:
    return json.dumps(asdict(value), ensure_ascii=False)


def format_answer(answer: SearchAnswer) -> str:
    """Format results for people, a paragraph for each page."""
    if not answer.results:
        return "nothing found"
    return "\n\n".join(
        "\n".join(filter(None, (result.title, f"  {result.url}", indent_text(result.description))))
        for result in answer.results
    )


def format_page(page: FetchedPage) -> str:
    title = f"# {page.title}\n\n" if page.title else ""
    return f"{title}{page.content}"


def indent_text(text: str) -> str:
    return f"  {text}" if text else ""
