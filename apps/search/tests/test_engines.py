"""Engines: each reads its own pages as they were saved, and asks as its site expects."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from apps.search.tests.sites import always, saved, serving
from crabtalk_search.engines import (
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
    bing,
    brave,
    duck_duck_go,
    mojeek,
    wikipedia,
)
from crabtalk_search.errors import EngineError
from crabtalk_search.hit import Hit
from crabtalk_search.web import DESKTOPS, LARGEST, Web


@pytest.mark.req("searchapp.engines")
def test_bing_is_read_through_its_counter_and_without_what_is_paid_for() -> None:
    assert bing.read(saved("bing.html")) == [
        Hit(
            "Tide tables for Dover",
            "https://www.tides.example/tables?place=dover",
            "High and low water for every day, with tables to print.",
        ),
        Hit(
            "What is a tide & why?",
            "https://sea.example/what-is-a-tide?utm_source=bing",
            "The moon pulls.",
        ),
    ]


@pytest.mark.req("searchapp.engines")
def test_brave_is_read_in_both_its_layouts() -> None:
    assert brave.read(saved("brave.html")) == [
        Hit(
            "Tide tables for Dover",
            "https://tides.example/tables?place=dover",
            "Every high water of the year.",
        ),
        Hit("The harbour", "https://harbour.example/", "Opening hours and tides."),
    ]


@pytest.mark.req("searchapp.engines")
def test_the_small_duck_duck_go_is_read_row_by_row() -> None:
    assert duck_duck_go.read_lite(saved("duck_duck_go_lite.html")) == [
        Hit(
            "Tide tables for Dover",
            "https://www.tides.example/tables?place=dover",
            "High and low water.",
        ),
        Hit("No words", "https://silent.example/", ""),
        Hit("The moon", "https://moon.example/", "It pulls."),
    ]


@pytest.mark.req("searchapp.engines")
def test_the_duck_duck_go_without_scripts_is_read_without_what_is_paid_for() -> None:
    assert duck_duck_go.read_html(saved("duck_duck_go.html")) == [
        Hit("Tides", "https://tides.example/", "All the tides.")
    ]


@pytest.mark.req("searchapp.engines")
def test_mojeek_is_read() -> None:
    assert mojeek.read(saved("mojeek.html")) == [
        Hit("Tides of the world", "https://tides.example/", "Where the tide is when."),
        Hit("Tides for boats", "https://boats.example/tides", ""),
    ]


@pytest.mark.req("searchapp.engines")
@pytest.mark.parametrize(
    ("read", "page"),
    [
        (bing.read, "bing_none.html"),
        (brave.read, "brave_none.html"),
        (duck_duck_go.read_lite, "duck_duck_go_none.html"),
        (mojeek.read, "mojeek_none.html"),
    ],
)
def test_a_page_that_says_there_is_nothing_is_an_answer(
    read: Callable[[str], list[Hit]], page: str
) -> None:
    assert read(saved(page)) == []


READERS: list[Callable[[str], list[Hit]]] = [
    bing.read,
    brave.read,
    duck_duck_go.read_lite,
    duck_duck_go.read_html,
    mojeek.read,
]


@pytest.mark.req("searchapp.engines.errors")
@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("page", [saved("captcha.html"), "", "\0", "<li class=b_algo><h2><a>"])
def test_a_page_without_results_that_does_not_say_so_is_an_error(
    read: Callable[[str], list[Hit]], page: str
) -> None:
    with pytest.raises(EngineError, match=r"captcha.*leave it out"):
        read(page)


@pytest.mark.req("searchapp.engines.errors")
@pytest.mark.parametrize("answer", [{}, [], None, ["q", "a", "b", "c"], {"error": "x"}])
def test_an_answer_of_wikipedia_of_another_shape_is_an_error(answer: Any) -> None:
    with pytest.raises(EngineError, match="shape"):
        wikipedia.read(answer)


ASKED: list[tuple[Callable[[str], Engine], str, int, dict[str, str]]] = [
    (lambda url: Bing(f"{url}/search"), "bing.html", 0, {"q": "tide tables", "first": "1"}),
    (lambda url: Bing(f"{url}/search"), "bing.html", 2, {"q": "tide tables", "first": "21"}),
    (lambda url: Brave(f"{url}/search"), "brave.html", 1, {"q": "tide tables", "offset": "1"}),
    (lambda url: DuckDuckGo(url, url), "duck_duck_go_lite.html", 0, {"q": "tide tables"}),
    (lambda url: Mojeek(f"{url}/search"), "mojeek.html", 1, {"q": "tide tables", "s": "11"}),
]


@pytest.mark.req("searchapp.engines")
@pytest.mark.parametrize(("make", "page", "number", "query"), ASKED)
async def test_a_site_for_people_is_asked_as_a_desktop_would(
    make: Callable[[str], Engine], page: str, number: int, query: dict[str, str]
) -> None:
    async with serving(always(saved(page))) as site, Web(5) as web_:
        hits = await make(site.url).search(web_, "tide tables", number)
    assert hits
    [request] = site.asked
    assert query.items() <= dict(request.query).items()
    assert request.headers["User-Agent"] in DESKTOPS


@pytest.mark.req("searchapp.engines")
async def test_duck_duck_go_has_a_second_door() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/lite":
            return web.Response(text=saved("captcha.html"), status=202)
        return web.Response(text=saved("duck_duck_go.html"), content_type="text/html")

    async with serving(answer) as site, Web(5) as web_:
        engine = DuckDuckGo(f"{site.url}/lite", f"{site.url}/html")
        assert [hit.title for hit in await engine.search(web_, "tides", 0)] == ["Tides"]
    assert [request.path for request in site.asked] == ["/lite", "/html"]


@pytest.mark.req("searchapp.engines")
async def test_wikipedia_is_asked_for_ten_titles() -> None:
    answer = always(saved("wikipedia.json"), content_type="application/json")
    async with serving(answer) as site, Web(5) as web_:
        hits = await Wikipedia(site.url).search(web_, "tide", 0)
    assert [hit.url for hit in hits] == [
        "https://en.wikipedia.org/wiki/Tide",
        "https://en.wikipedia.org/wiki/Tide_table",
    ]
    asked = {"action": "opensearch", "search": "tide", "limit": "10", "format": "json"}
    assert dict(site.asked[0].query) == asked
    assert "crabtalk" in site.asked[0].headers["User-Agent"]


@pytest.mark.req("searchapp.engines.configured")
async def test_searxng_is_asked_for_json() -> None:
    answer = always(saved("searxng.json"), content_type="application/json")
    async with serving(answer) as site, Web(5) as web_:
        hits = await Searxng(f"{site.url}/").search(web_, "tides", 1)
    assert hits == [
        Hit("Tides", "https://tides.example/", "All the tides."),
        Hit("The moon", "https://moon.example/", ""),
    ]
    assert site.asked[0].path == "/search"
    assert dict(site.asked[0].query) == {"q": "tides", "format": "json", "pageno": "2"}


@pytest.mark.req("searchapp.engines.configured")
async def test_braves_api_is_shown_the_key() -> None:
    answer = always(saved("brave_api.json"), content_type="application/json")
    async with serving(answer) as site, Web(5) as web_:
        hits = await BraveApi("s3cret", site.url).search(web_, "tides", 1)
    assert hits[0] == Hit("Tide tables", "https://tides.example/", "All the tides & more")
    assert site.asked[0].headers["X-Subscription-Token"] == "s3cret"
    assert site.asked[0].query["offset"] == "1"
    assert "s3cret" not in repr(BraveApi("s3cret"))


@pytest.mark.req("searchapp.engines.configured")
async def test_tavily_is_shown_the_key() -> None:
    answer = always(saved("tavily.json"), content_type="application/json")
    async with serving(answer) as site, Web(5) as web_:
        hits = await Tavily("s3cret", site.url).search(web_, "tides", 0)
    assert hits == [Hit("Tides", "https://tides.example/", "All the tides.")]
    assert site.asked[0].method == "POST"
    assert site.asked[0].headers["Authorization"] == "Bearer s3cret"
    assert json.loads(await site.asked[0].text()) == {"query": "tides", "max_results": 10}
    assert "s3cret" not in repr(Tavily("s3cret"))


@pytest.mark.req("searchapp.engines.configured")
async def test_ddgs_is_asked_in_a_thread() -> None:
    def ask(query: str, page: int) -> list[dict[str, Any]]:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return [{"title": f"{query} {page}", "href": "https://tides.example/", "body": "All."}]

    async with Web(5) as web_:
        hits = await Ddgs(ask).search(web_, "tides", 1)
    assert hits == [Hit("tides 1", "https://tides.example/", "All.")]


@pytest.mark.req("searchapp.engines.errors")
async def test_whatever_ddgs_raises_is_an_error_of_the_engine() -> None:
    def ask(query: str, page: int) -> list[dict[str, Any]]:
        raise LookupError("No results found.")

    async with Web(5) as web_:
        with pytest.raises(EngineError, match=r"No results found\."):
            await Ddgs(ask).search(web_, "tides", 0)


@pytest.mark.req("searchapp.engines.errors")
@pytest.mark.parametrize(
    ("status", "said"),
    [(403, "check its key"), (429, "slow down"), (202, "slow down"), (500, "it answered 500")],
)
async def test_a_refusal_says_what_to_do(status: int, said: str) -> None:
    async with serving(always("{}", status)) as site, Web(5) as web_:
        with pytest.raises(EngineError, match=said):
            await Searxng(site.url).search(web_, "tides", 0)


@pytest.mark.req("searchapp.engines.errors")
async def test_what_is_no_json_is_an_error() -> None:
    async with serving(always("<html>")) as site, Web(5) as web_:
        with pytest.raises(EngineError, match="did not answer in JSON"):
            await Searxng(site.url).search(web_, "tides", 0)


@pytest.mark.req("searchapp.engines.errors")
async def test_nobody_there_is_an_error() -> None:
    async with serving(always("")) as site:
        pass
    async with Web(5) as web_:
        with pytest.raises(EngineError, match="cannot connect"):
            await Searxng(site.url).search(web_, "tides", 0)


@pytest.mark.req("searchapp.engines.bounds")
async def test_no_more_is_read_of_a_page_than_a_page_can_have() -> None:
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)
            sent += 65536

    async with serving(answer) as site, Web(20) as web_:
        with pytest.raises(EngineError):
            await Bing(site.url).search(web_, "tides", 0)
    assert sent < 10 * LARGEST
