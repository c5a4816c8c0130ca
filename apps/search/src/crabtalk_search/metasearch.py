"""Metasearch: every engine asked at once, each with its own deadline, and one answer made of it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .cache import ExpiringCache
from .config import SearchConfig
from .engine_client import EngineClient
from .engine_hit import EngineHit
from .engines import (
    BingEngine,
    BraveApiEngine,
    BraveEngine,
    DdgsEngine,
    DuckDuckGoEngine,
    MojeekEngine,
    SearchEngine,
    SearxngEngine,
    TavilyEngine,
    WikipediaEngine,
)
from .errors import EngineError, SearchError
from .ranking import SearchResult, rank_hits

# No engine reads further.
MAX_QUERY_LENGTH = 2000
MAX_PAGE = 100


@dataclass(frozen=True, slots=True)
class EngineFailure:
    engine: str
    error: str


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    query: str
    results: list[SearchResult]
    engine_errors: list[EngineFailure]
    elapsed_ms: int


class Metasearch:
    """Asks, and remembers the answers for a while."""

    def __init__(
        self, config: SearchConfig, web: EngineClient, engines: Sequence[SearchEngine] | None = None
    ) -> None:
        self._web = web
        self._timeout = config.timeout
        self._max_results = config.max_results
        self._engines = make_engines(config) if engines is None else engines
        self._cache: ExpiringCache[tuple[str, int], SearchAnswer] = ExpiringCache(
            config.cache_capacity, config.cache_ttl
        )

    async def search(self, query: str, page: int = 0) -> SearchAnswer:
        """Raises SearchError. Cancelled, no engine is waited for."""
        query = " ".join(query.split())
        if not query:
            raise SearchError("the query is empty: say what to look for")
        if len(query) > MAX_QUERY_LENGTH:
            raise SearchError(f"the query is longer than {MAX_QUERY_LENGTH} characters: shorten it")
        if not 0 <= page <= MAX_PAGE:
            raise SearchError(f"page is 0 for the first and at most {MAX_PAGE}: {page} is not")
        if (known := self._cache.get((query, page))) is not None:
            return known
        answer = await self._ask_engines(query, page)
        # An answer nobody gave is not worth keeping.
        if len(answer.engine_errors) < len(self._select_engines(page)):
            self._cache.put((query, page), answer)
        return answer

    def _select_engines(self, page: int) -> list[SearchEngine]:
        return [engine for engine in self._engines if page == 0 or engine.has_pages]

    async def _ask_engines(self, query: str, page: int) -> SearchAnswer:
        start = time.monotonic()
        engines = self._select_engines(page)
        async with asyncio.TaskGroup() as group:
            tasks = {
                engine.id: group.create_task(self._ask_engine(engine, query, page))
                for engine in engines
            }
        outcomes = {name: task.result() for name, task in tasks.items()}
        found = {name: hits for name, hits in outcomes.items() if not isinstance(hits, str)}
        return SearchAnswer(
            query,
            rank_hits(found, self._max_results),
            [EngineFailure(name, why) for name, why in outcomes.items() if isinstance(why, str)],
            round((time.monotonic() - start) * 1000),
        )

    async def _ask_engine(
        self, engine: SearchEngine, query: str, page: int
    ) -> list[EngineHit] | str:
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


def make_engines(config: SearchConfig) -> list[SearchEngine]:
    told = config.engine_settings
    makers: dict[str, Callable[[], SearchEngine]] = {
        "bing": BingEngine,
        "brave": BraveEngine,
        "duck_duck_go": DuckDuckGoEngine,
        "mojeek": MojeekEngine,
        "wikipedia": WikipediaEngine,
        "ddgs": DdgsEngine,
        "searxng": lambda: SearxngEngine(told["searxng"]),
        "brave_api": lambda: BraveApiEngine(told["brave_api"]),
        "tavily": lambda: TavilyEngine(told["tavily"]),
    }
    return [makers[name]() for name in config.engines]
