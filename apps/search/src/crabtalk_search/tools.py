"""The tools `search` and `fetch`: their answers as agents and scripts get them."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict

from .config import Config
from .errors import FetchError, SearchError
from .fetch import Fetcher, Page
from .metasearch import Answer, Metasearch
from .web import Web


class Tools:
    """As long as the context that made them lives. Both answer in JSON, or fail with a text."""

    def __init__(self, metasearch: Metasearch, fetcher: Fetcher) -> None:
        self._metasearch = metasearch
        self._fetcher = fetcher

    async def search(self, query: str, page: int = 0) -> Answer:
        """Raises SearchError, whose text begins as agents know it."""
        try:
            return await self._metasearch.search(query, page)
        except SearchError as error:
            raise SearchError(f"search error: {error}") from None

    async def fetch(self, url: str) -> Page:
        try:
            return await self._fetcher.fetch(url)
        except FetchError as error:
            raise FetchError(f"fetch error: {error}") from None


@asynccontextmanager
async def tools(config: Config) -> AsyncIterator[Tools]:
    async with AsyncExitStack() as stack:
        web = await stack.enter_async_context(Web(config.timeout))
        fetcher = await stack.enter_async_context(Fetcher(config.fetch))
        yield Tools(Metasearch(config, web), fetcher)


def as_json(value: Answer | Page) -> str:
    return json.dumps(asdict(value), ensure_ascii=False)


def answer_as_text(answer: Answer) -> str:
    """For people: a paragraph a page."""
    if not answer.results:
        return "nothing found"
    return "\n\n".join(
        "\n".join(filter(None, (result.title, f"  {result.url}", indented(result.description))))
        for result in answer.results
    )


def page_as_text(page: Page) -> str:
    title = f"# {page.title}\n\n" if page.title else ""
    return f"{title}{page.content}"


def indented(text: str) -> str:
    return f"  {text}" if text else ""
