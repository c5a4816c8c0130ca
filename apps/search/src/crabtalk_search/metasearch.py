"""Metasearch: every engine asked at once, each with its own deadline, and one answer made of it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .cache import Cache
from .config import Config
from .engines import (
    Bing,
    Brave,
    BraveApi,
    Ddgs,
    DuckDuckGo,
    Engine,
    Mojeek,
    Searxng,
    Tavily,
    Wikipedia,
)
from .errors import EngineError, SearchError
from .hit import Hit
from .ranking import Result, ranked
from .web import Web

# No engine reads further.
LONGEST = 2000
LAST_PAGE = 100


@dataclass(frozen=True, slots=True)
class EngineFailure:
    engine: str
    error: str


@dataclass(frozen=True, slots=True)
class Answer:
    query: str
    results: list[Result]
    engine_errors: list[EngineFailure]
    elapsed_ms: int


class Metasearch:
    """Asks, and remembers the answers for a while."""

    def __init__(self, config: Config, web: Web, engines: Sequence[Engine] | None = None) -> None:
        self._web = web
        self._timeout = config.timeout
        self._max_results = config.max_results
        self._engines = chosen(config) if engines is None else engines
        self._cache: Cache[tuple[str, int], Answer] = Cache(config.cache_capacity, config.cache_ttl)

    async def search(self, query: str, page: int = 0) -> Answer:
        """Raises SearchError. Cancelled, no engine is waited for."""
        query = " ".join(query.split())
        if not query:
            raise SearchError("the query is empty: say what to look for")
        if len(query) > LONGEST:
            raise SearchError(f"the query is longer than {LONGEST} characters: shorten it")
        if not 0 <= page <= LAST_PAGE:
            raise SearchError(f"page is 0 for the first and at most {LAST_PAGE}: {page} is not")
        if (known := self._cache.get((query, page))) is not None:
            return known
        answer = await self._ask(query, page)
        # An answer nobody gave is not worth keeping.
        if len(answer.engine_errors) < len(self._asked(page)):
            self._cache.put((query, page), answer)
        return answer

    def _asked(self, page: int) -> list[Engine]:
        return [engine for engine in self._engines if page == 0 or engine.has_pages]

    async def _ask(self, query: str, page: int) -> Answer:
        start = time.monotonic()
        engines = self._asked(page)
        async with asyncio.TaskGroup() as group:
            tasks = {
                engine.id: group.create_task(self._ask_one(engine, query, page))
                for engine in engines
            }
        outcomes = {name: task.result() for name, task in tasks.items()}
        found = {name: hits for name, hits in outcomes.items() if not isinstance(hits, str)}
        return Answer(
            query,
            ranked(found, self._max_results),
            [EngineFailure(name, why) for name, why in outcomes.items() if isinstance(why, str)],
            round((time.monotonic() - start) * 1000),
        )

    async def _ask_one(self, engine: Engine, query: str, page: int) -> list[Hit] | str:
        """Its hits, or what is wrong with it."""
        try:
            async with asyncio.timeout(self._timeout):
                return await engine.search(self._web, query, page)
        except TimeoutError:
            return f"no answer in {self._timeout:g} s"
        except EngineError as error:
            return str(error)
        except Exception as error:  # a page that trips one reader is not to take the others down
            return f"its answer cannot be read: {type(error).__name__}: {error}"


def chosen(config: Config) -> list[Engine]:
    told = config.told
    makers: dict[str, Callable[[], Engine]] = {
        "bing": Bing,
        "brave": Brave,
        "duck_duck_go": DuckDuckGo,
        "mojeek": Mojeek,
        "wikipedia": Wikipedia,
        "ddgs": Ddgs,
        "searxng": lambda: Searxng(told["searxng"]),
        "brave_api": lambda: BraveApi(told["brave_api"]),
        "tavily": lambda: Tavily(told["tavily"]),
    }
    return [makers[name]() for name in config.engines]
