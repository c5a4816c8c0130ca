"""Engines: each parses saved pages of its site, and sends the requests that the site expects."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from apps.search.tests.local_sites import make_handler, read_saved_page, serve_site
from crabtalk_search.engine_client import DESKTOP_USER_AGENTS, MAX_ANSWER_BYTES, EngineClient
from crabtalk_search.engine_hit import EngineHit
from crabtalk_search.engines import (
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
    bing,
    brave,
    duck_duck_go,
    mojeek,
    wikipedia,
)
from crabtalk_search.errors import EngineError


@pytest.mark.req("searchapp.engines")
def test_bing_links_are_resolved_and_advertisements_left_out() -> None:
    assert bing.parse_results(read_saved_page("bing.html")) == [
        EngineHit(
            "Tide tables for Dover",
            "https://www.tides.example/tables?place=dover",
            "High and low water for every day, with tables to print.",
        ),
        EngineHit(
            "What is a tide & why?",
            "https://sea.example/what-is-a-tide?utm_source=bing",
            "The moon pulls.",
        ),
    ]


@pytest.mark.req("searchapp.engines")
def test_both_layouts_of_brave_are_parsed() -> None:
    assert brave.parse_results(read_saved_page("brave.html")) == [
        EngineHit(
            "Tide tables for Dover",
            "https://tides.example/tables?place=dover",
            "Every high water of the year.",
        ),
        EngineHit("The harbour", "https://harbour.example/", "Opening hours and tides."),
    ]


@pytest.mark.req("searchapp.engines")
def test_duck_duck_go_lite_is_parsed_row_by_row() -> None:
    assert duck_duck_go.parse_lite_results(read_saved_page("duck_duck_go_lite.html")) == [
        EngineHit(
            "Tide tables for Dover",
            "https://www.tides.example/tables?place=dover",
            "High and low water.",
        ),
        EngineHit("No words", "https://silent.example/", ""),
        EngineHit("The moon", "https://moon.example/", "It pulls."),
    ]


@pytest.mark.req("searchapp.engines")
def test_duck_duck_go_html_is_parsed_without_advertisements() -> None:
    assert duck_duck_go.parse_html_results(read_saved_page("duck_duck_go.html")) == [
        EngineHit("Tides", "https://tides.example/", "All the tides.")
    ]


@pytest.mark.req("searchapp.engines")
def test_mojeek_is_parsed() -> None:
    assert mojeek.parse_results(read_saved_page("mojeek.html")) == [
        EngineHit("Tides of the world", "https://tides.example/", "Where the tide is when."),
        EngineHit("Tides for boats", "https://boats.example/tides", ""),
    ]


@pytest.mark.req("searchapp.engines")
@pytest.mark.parametrize(
    ("read", "page"),
    [
        (bing.parse_results, "bing_none.html"),
        (brave.parse_results, "brave_none.html"),
        (duck_duck_go.parse_lite_results, "duck_duck_go_none.html"),
        (mojeek.parse_results, "mojeek_none.html"),
    ],
)
def test_a_page_that_says_it_has_no_results_is_an_answer(
    read: Callable[[str], list[EngineHit]], page: str
) -> None:
    assert read(read_saved_page(page)) == []


RESULT_PARSERS: list[Callable[[str], list[EngineHit]]] = [
    bing.parse_results,
    brave.parse_results,
    duck_duck_go.parse_lite_results,
    duck_duck_go.parse_html_results,
    mojeek.parse_results,
]


@pytest.mark.req("searchapp.engines.errors")
@pytest.mark.parametrize("read", RESULT_PARSERS)
@pytest.mark.parametrize(
    "page", [read_saved_page("captcha.html"), "", "\0", "<li class=b_algo><h2><a>"]
)
def test_a_page_without_results_that_does_not_say_so_is_an_error(
    read: Callable[[str], list[EngineHit]], page: str
) -> None:
    with pytest.raises(EngineError, match=r"captcha.*leave it out"):
        read(page)


@pytest.mark.req("searchapp.engines.errors")
@pytest.mark.parametrize("answer", [{}, [], None, ["q", "a", "b", "c"], {"error": "x"}])
def test_an_unexpected_answer_of_wikipedia_is_an_error(answer: Any) -> None:
    with pytest.raises(EngineError, match="shape"):
        wikipedia.parse_results(answer)


ENGINE_REQUESTS: list[tuple[Callable[[str], SearchEngine], str, int, dict[str, str]]] = [
    (lambda url: BingEngine(f"{url}/search"), "bing.html", 0, {"q": "tide tables", "first": "1"}),
    (lambda url: BingEngine(f"{url}/search"), "bing.html", 2, {"q": "tide tables", "first": "21"}),
    (
        lambda url: BraveEngine(f"{url}/search"),
        "brave.html",
        1,
        {"q": "tide tables", "offset": "1"},
    ),
    (lambda url: DuckDuckGoEngine(url, url), "duck_duck_go_lite.html", 0, {"q": "tide tables"}),
    (lambda url: MojeekEngine(f"{url}/search"), "mojeek.html", 1, {"q": "tide tables", "s": "11"}),
]


@pytest.mark.req("searchapp.engines")
@pytest.mark.parametrize(("make", "page", "number", "query"), ENGINE_REQUESTS)
async def test_html_engines_are_requested_as_by_a_desktop_browser(
    make: Callable[[str], SearchEngine], page: str, number: int, query: dict[str, str]
) -> None:
    async with serve_site(make_handler(read_saved_page(page))) as site, EngineClient(5) as web_:
        hits = await make(site.url).search(web_, "tide tables", number)
    assert hits
    [request] = site.requests
    assert query.items() <= dict(request.query).items()
    assert request.headers["User-Agent"] in DESKTOP_USER_AGENTS


@pytest.mark.req("searchapp.engines")
async def test_duck_duck_go_falls_back_to_its_html_page() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/lite":
            return web.Response(text=read_saved_page("captcha.html"), status=202)
        return web.Response(text=read_saved_page("duck_duck_go.html"), content_type="text/html")

    async with serve_site(answer) as site, EngineClient(5) as web_:
        engine = DuckDuckGoEngine(f"{site.url}/lite", f"{site.url}/html")
        assert [hit.title for hit in await engine.search(web_, "tides", 0)] == ["Tides"]
    assert [request.path for request in site.requests] == ["/lite", "/html"]


@pytest.mark.req("searchapp.engines")
async def test_wikipedia_is_asked_for_ten_titles() -> None:
    answer = make_handler(read_saved_page("wikipedia.json"), content_type="application/json")
    async with serve_site(answer) as site, EngineClient(5) as web_:
        hits = await WikipediaEngine(site.url).search(web_, "tide", 0)
    assert [hit.url for hit in hits] == [
        "https://en.wikipedia.org/wiki/Tide",
        "https://en.wikipedia.org/wiki/Tide_table",
    ]
    expected_query = {"action": "opensearch", "search": "tide", "limit": "10", "format": "json"}
    assert dict(site.requests[0].query) == expected_query
    assert "crabtalk" in site.requests[0].headers["User-Agent"]


@pytest.mark.req("searchapp.engines.configured")
async def test_searxng_is_asked_for_json() -> None:
    answer = make_handler(read_saved_page("searxng.json"), content_type="application/json")
    async with serve_site(answer) as site, EngineClient(5) as web_:
        hits = await SearxngEngine(f"{site.url}/").search(web_, "tides", 1)
    assert hits == [
        EngineHit("Tides", "https://tides.example/", "All the tides."),
        EngineHit("The moon", "https://moon.example/", ""),
    ]
    assert site.requests[0].path == "/search"
    assert dict(site.requests[0].query) == {"q": "tides", "format": "json", "pageno": "2"}


@pytest.mark.req("searchapp.engines.configured")
async def test_the_brave_api_gets_the_key() -> None:
    answer = make_handler(read_saved_page("brave_api.json"), content_type="application/json")
    async with serve_site(answer) as site, EngineClient(5) as web_:
        hits = await BraveApiEngine("s3cret", site.url).search(web_, "tides", 1)
    assert hits[0] == EngineHit("Tide tables", "https://tides.example/", "All the tides & more")
    assert site.requests[0].headers["X-Subscription-Token"] == "s3cret"
    assert site.requests[0].query["offset"] == "1"
    assert "s3cret" not in repr(BraveApiEngine("s3cret"))


@pytest.mark.req("searchapp.engines.configured")
async def test_tavily_gets_the_key() -> None:
    answer = make_handler(read_saved_page("tavily.json"), content_type="application/json")
    async with serve_site(answer) as site, EngineClient(5) as web_:
        hits = await TavilyEngine("s3cret", site.url).search(web_, "tides", 0)
    assert hits == [EngineHit("Tides", "https://tides.example/", "All the tides.")]
    assert site.requests[0].method == "POST"
    assert site.requests[0].headers["Authorization"] == "Bearer s3cret"
    assert json.loads(await site.requests[0].text()) == {"query": "tides", "max_results": 10}
    assert "s3cret" not in repr(TavilyEngine("s3cret"))


@pytest.mark.req("searchapp.engines.configured")
async def test_ddgs_runs_in_a_thread() -> None:
    def ask(query: str, page: int) -> list[dict[str, Any]]:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return [{"title": f"{query} {page}", "href": "https://tides.example/", "body": "All."}]

    async with EngineClient(5) as web_:
        hits = await DdgsEngine(ask).search(web_, "tides", 1)
    assert hits == [EngineHit("tides 1", "https://tides.example/", "All.")]


@pytest.mark.req("searchapp.engines.errors")
async def test_any_exception_of_ddgs_is_an_engine_error() -> None:
    def ask(query: str, page: int) -> list[dict[str, Any]]:
        raise LookupError("No results found.")

    async with EngineClient(5) as web_:
        with pytest.raises(EngineError, match=r"No results found\."):
            await DdgsEngine(ask).search(web_, "tides", 0)


@pytest.mark.req("searchapp.engines.errors")
@pytest.mark.parametrize(
    ("status", "advice"),
    [(403, "check its key"), (429, "slow down"), (202, "slow down"), (500, "it answered 500")],
)
async def test_a_refused_request_says_what_to_do(status: int, advice: str) -> None:
    async with serve_site(make_handler("{}", status)) as site, EngineClient(5) as web_:
        with pytest.raises(EngineError, match=advice):
            await SearxngEngine(site.url).search(web_, "tides", 0)


@pytest.mark.req("searchapp.engines.errors")
async def test_an_answer_that_is_not_json_is_an_error() -> None:
    async with serve_site(make_handler("<html>")) as site, EngineClient(5) as web_:
        with pytest.raises(EngineError, match="did not answer in JSON"):
            await SearxngEngine(site.url).search(web_, "tides", 0)


@pytest.mark.req("searchapp.engines.errors")
async def test_a_refused_connection_is_an_error() -> None:
    async with serve_site(make_handler("")) as site:
        pass
    async with EngineClient(5) as web_:
        with pytest.raises(EngineError, match="cannot connect"):
            await SearxngEngine(site.url).search(web_, "tides", 0)


@pytest.mark.req("searchapp.engines.bounds")
async def test_the_size_of_a_result_page_is_bounded() -> None:
    sent_bytes = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent_bytes
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)
            sent_bytes += 65536

    async with serve_site(answer) as site, EngineClient(20) as web_:
        with pytest.raises(EngineError):
            await BingEngine(site.url).search(web_, "tides", 0)
    assert sent_bytes < 10 * MAX_ANSWER_BYTES
