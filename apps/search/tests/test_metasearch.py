"""Metasearch: asks all engines at once with a deadline each; a broken one affects no other."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from crabtalk_search.config import SearchConfig
from crabtalk_search.engine_client import EngineClient
from crabtalk_search.engine_hit import EngineHit
from crabtalk_search.engines import SearchEngine
from crabtalk_search.errors import EngineError, SearchError
from crabtalk_search.metasearch import EngineFailure, Metasearch, make_engines


@dataclass
class ScriptedEngine:
    """An engine with a scripted answer."""

    id: str
    act: Callable[[str, int], Awaitable[list[EngineHit]]]
    has_pages: bool = True
    requests: list[tuple[str, int]] = field(default_factory=list)

    async def search(self, web: EngineClient, query: str, page: int) -> list[EngineHit]:
        self.requests.append((query, page))
        return await self.act(query, page)


async def find_one(query: str, page: int) -> list[EngineHit]:
    return [EngineHit(query, f"https://{page}.example", "")]


async def raise_engine_error(query: str, page: int) -> list[EngineHit]:
    raise EngineError("out of order")


async def raise_key_error(query: str, page: int) -> list[EngineHit]:
    raise KeyError("surprise")


async def hang_forever(query: str, page: int) -> list[EngineHit]:
    await asyncio.Event().wait()
    raise AssertionError


def make_metasearch(*engines: SearchEngine, config: SearchConfig | None = None) -> Metasearch:
    return Metasearch(config or SearchConfig(timeout=0.2), EngineClient(1), engines)


@pytest.mark.req("searchapp.search.parallel")
async def test_engines_are_asked_at_once() -> None:
    together = asyncio.Barrier(3)

    async def waits(query: str, page: int) -> list[EngineHit]:
        async with asyncio.timeout(5):
            await together.wait()
        return await find_one(query, page)

    search = make_metasearch(
        *(ScriptedEngine(name, waits) for name in "abc"), config=SearchConfig(timeout=10)
    )
    answer = await search.search("tides")
    assert answer.results[0].engines == ["a", "b", "c"]
    assert answer.engine_errors == []


@pytest.mark.req("searchapp.search.errors")
@pytest.mark.clock
async def test_the_failure_of_an_engine_is_reported_beside_the_results_of_others() -> None:
    search = make_metasearch(
        ScriptedEngine("a", raise_engine_error),
        ScriptedEngine("b", find_one),
        ScriptedEngine("c", hang_forever),
        ScriptedEngine("d", raise_key_error),
    )
    start = time.monotonic()
    answer = await search.search("tides")
    assert time.monotonic() - start < 5
    assert [result.engines for result in answer.results] == [["b"]]
    assert answer.engine_errors == [
        EngineFailure("a", "out of order"),
        EngineFailure("c", "no answer in 0.2 s"),
        EngineFailure("d", "its answer cannot be read: KeyError: 'surprise'"),
    ]
    assert answer.elapsed_ms >= 190


@pytest.mark.req("searchapp.search.errors")
async def test_an_answer_of_no_engine_is_empty_and_says_why() -> None:
    answer = await make_metasearch(ScriptedEngine("a", raise_engine_error)).search("tides")
    assert answer.results == []
    assert answer.engine_errors == [EngineFailure("a", "out of order")]


@pytest.mark.req("searchapp.cache")
async def test_a_repeated_query_is_answered_from_the_cache() -> None:
    engine = ScriptedEngine("a", find_one)
    search = make_metasearch(engine)
    first = await search.search("tide  tables ")
    assert await search.search("tide tables") is first
    await search.search("tide tables", 1)
    await search.search("other")
    assert engine.requests == [("tide tables", 0), ("tide tables", 1), ("other", 0)]


@pytest.mark.req("searchapp.cache")
async def test_an_answer_of_no_engine_is_not_cached() -> None:
    engine = ScriptedEngine("a", raise_engine_error)
    search = make_metasearch(engine)
    await search.search("tides")
    await search.search("tides")
    assert len(engine.requests) == 2


@pytest.mark.req("searchapp.search.pages")
async def test_an_engine_without_pages_is_only_asked_for_the_first_page() -> None:
    paged, single = ScriptedEngine("a", find_one), ScriptedEngine("b", find_one, has_pages=False)
    search = make_metasearch(paged, single)
    assert [r.engines for r in (await search.search("tides", 0)).results] == [["a", "b"]]
    assert [r.engines for r in (await search.search("tides", 1)).results] == [["a"]]
    assert single.requests == [("tides", 0)]


@pytest.mark.req("searchapp.search.refused")
@pytest.mark.parametrize(
    ("query", "page"), [("", 0), (" \n", 0), ("x" * 2001, 0), ("tides", -1), ("tides", 101)]
)
async def test_an_invalid_query_is_refused_before_any_request(query: str, page: int) -> None:
    engine = ScriptedEngine("a", find_one)
    with pytest.raises(SearchError, match=":"):
        await make_metasearch(engine).search(query, page)
    assert engine.requests == []


@pytest.mark.req("searchapp.search.max_results")
async def test_the_default_limit_is_twenty_results() -> None:
    async def many(query: str, page: int) -> list[EngineHit]:
        return [EngineHit("t", f"https://{n}.example", "") for n in range(50)]

    assert len((await make_metasearch(ScriptedEngine("a", many)).search("tides")).results) == 20
    short = make_metasearch(ScriptedEngine("a", many), config=SearchConfig(max_results=3))
    assert len((await short.search("tides")).results) == 3


@pytest.mark.req("searchapp.search.parallel")
async def test_cancellation_cancels_the_requests() -> None:
    cancelled = asyncio.Event()

    async def notices(query: str, page: int) -> list[EngineHit]:
        try:
            return await hang_forever(query, page)
        finally:
            cancelled.set()

    engine = ScriptedEngine("a", notices)
    task = asyncio.ensure_future(
        make_metasearch(engine, config=SearchConfig(timeout=60)).search("tides")
    )
    async with asyncio.timeout(5):
        while not engine.requests:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert cancelled.is_set()


@pytest.mark.req("searchapp.engines")
def test_the_five_free_engines_are_the_default() -> None:
    free = ["bing", "brave", "duck_duck_go", "mojeek", "wikipedia"]
    assert [engine.id for engine in make_engines(SearchConfig())] == free
    settings = {"searxng": "http://s", "brave_api": "k", "tavily": "k"}
    config = SearchConfig(engines=(*settings, "ddgs"), engine_settings=settings)
    assert [engine.id for engine in make_engines(config)] == [
        "searxng",
        "brave_api",
        "tavily",
        "ddgs",
    ]
