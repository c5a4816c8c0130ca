"""Metasearch: asks all engines at once, each with its own deadline, and merges their results."""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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

# Engines ignore what is longer.
MAX_QUERY_LENGTH = 2000
MAX_PAGE = 100
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
ENGINE_BONUS = 0.5
TRACKING_PATTERN = re.compile(r"utm_[^=]*|fbclid|gclid|ref")


@dataclass(slots=True)
class SearchResult:
    """A page, and the engines that found it."""

    title: str
    url: str
    description: str
    engines: list[str] = field(default_factory=list)
    score: float = 0.0


def rank_hits(hits_by_engine: Mapping[str, Sequence[EngineHit]], limit: int) -> list[SearchResult]:
    """The best `limit` pages, best first; pages with the same score in order of discovery."""
    results: dict[str, SearchResult] = {}
    for engine, hits in hits_by_engine.items():
        for position, hit in enumerate(hits, 1):
            result = results.setdefault(
                normalize_url(hit.url), SearchResult(hit.title, hit.url, "")
            )
            if engine in result.engines:
                continue  # count each engine once per page
            result.score += 1 / position + (ENGINE_BONUS if result.engines else 0)
            result.engines.append(engine)
            result.description = max(result.description, hit.description, key=len)
            result.title = result.title or hit.title
    return sorted(results.values(), key=lambda result: -result.score)[:limit]


def normalize_url(url: str) -> str:
    """Remove differences that do not matter: `www.`, a trailing slash, tracking parameters."""
    address, question, query = url.partition("?")
    if question:
        query, hash_mark, fragment = query.partition("#")
        parameters = [pair for pair in query.split("&") if not is_tracking_parameter(pair)]
        rest = "&".join(parameters)
        url = address + (f"?{rest}" if rest else "") + hash_mark + fragment
    return url.replace("://www.", "://", 1).removesuffix("/")


def is_tracking_parameter(pair: str) -> bool:
    return TRACKING_PATTERN.fullmatch(pair.partition("=")[0]) is not None


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


class ExpiringCache(Generic[K, V]):
    def __init__(
        self, capacity: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity = capacity
        self._seconds = seconds
        self._clock = clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        expires_at, value = entry
        if self._clock() >= expires_at:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        self._entries[key] = (self._clock() + self._seconds, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
