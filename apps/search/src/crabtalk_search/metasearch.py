"""Metasearch: asks all engines at once, each with its own deadline, and merges their results."""

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

# Engines ignore what is longer.
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
    """Asks the engines, and caches the answers for a while."""

    def __init__(
        self,
        config: SearchConfig,
        client: EngineClient,
        engines: Sequence[SearchEngine] | None = None,
    ) -> None:
        self._web = client
        self._timeout = config.timeout
        self._max_results = config.max_results
        self._engines = make_engines(config) if engines is None else engines
        self._cache: ExpiringCache[tuple[str, int], SearchAnswer] = ExpiringCache(
            config.cache_capacity, config.cache_ttl
        )

    async def search(self, query: str, page: int = 0) -> SearchAnswer:
        """Raises SearchError. Cancelled, the requests to the engines are cancelled too."""
        query = " ".join(query.split())
        if not query:
            raise SearchError("the query is empty: say what to look for")
        if len(query) > MAX_QUERY_LENGTH:
            raise SearchError(f"the query is longer than {MAX_QUERY_LENGTH} characters: shorten it")
        if not 0 <= page <= MAX_PAGE:
            raise SearchError(f"page is 0 for the first and at most {MAX_PAGE}: {page} is not")
        if (cached := self._cache.get((query, page))) is not None:
            return cached
        answer = await self._ask_engines(query, page)
        # If all engines failed, the answer is not worth caching.
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
        hits_by_engine = {
            name: hits for name, hits in outcomes.items() if not isinstance(hits, str)
        }
        return SearchAnswer(
            query,
            rank_hits(hits_by_engine, self._max_results),
            [
                EngineFailure(name, error)
                for name, error in outcomes.items()
                if isinstance(error, str)
            ],
            round((time.monotonic() - start) * 1000),
        )

    async def _ask_engine(
        self, engine: SearchEngine, query: str, page: int
    ) -> list[EngineHit] | str:
        """The engine's hits, or an error text."""
        try:
            async with asyncio.timeout(self._timeout):
                return await engine.search(self._web, query, page)
        except TimeoutError:
            return f"no answer in {self._timeout:g} s"
        except EngineError as error:
            return str(error)
        except Exception as error:  # a page that breaks one parser must not affect other engines
            return f"its answer cannot be read: {type(error).__name__}: {error}"


def make_engines(config: SearchConfig) -> list[SearchEngine]:
    settings = config.engine_settings
    makers: dict[str, Callable[[], SearchEngine]] = {
        "bing": BingEngine,
        "brave": BraveEngine,
        "duck_duck_go": DuckDuckGoEngine,
        "mojeek": MojeekEngine,
        "wikipedia": WikipediaEngine,
        "ddgs": DdgsEngine,
        "searxng": lambda: SearxngEngine(settings["searxng"]),
        "brave_api": lambda: BraveApiEngine(settings["brave_api"]),
        "tavily": lambda: TavilyEngine(settings["tavily"]),
    }
    return [makers[name]() for name in config.engines]
