"""The command line: the tools for people and scripts."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from apps.search.tests.local_sites import make_handler, read_saved_page, serve_site, write_config
from apps.search.tests.search_command import PROGRAM, SEARCH_LAUNCHER
from crabtalk_search import __version__


@dataclass(frozen=True)
class SearchOutcome:
    code: int | None
    out: str
    err: str


async def run_search(*words: str, home: Path) -> SearchOutcome:
    return SearchOutcome(
        *await SEARCH_LAUNCHER.run_and_capture(
            *words, env={**os.environ, "CRABTALK_HOME": str(home)}
        )
    )


async def run_installed(*words: str, home: Path) -> SearchOutcome:
    """Run the installed program."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *words,
        env={**os.environ, "CRABTALK_HOME": str(home)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    return SearchOutcome(process.returncode, out.decode(), err.decode())


@pytest.mark.req("searchapp.cli")
async def test_search_prints_what_was_found(home: Path) -> None:
    async with serve_site(
        make_handler(read_saved_page("searxng.json"), content_type="application/json")
    ) as site:
        write_config(home, site)
        outcome = await run_installed("search", "tide", "tables", home=home)
    assert outcome == SearchOutcome(
        0,
        "Tides\n  https://tides.example/\n  All the tides.\n\nThe moon\n  https://moon.example/\n",
        "",
    )
    assert site.requests[0].query["q"] == "tide tables"


@pytest.mark.req("searchapp.cli")
async def test_search_in_json_is_one_document(home: Path) -> None:
    async with serve_site(
        make_handler(read_saved_page("searxng.json"), content_type="application/json")
    ) as site:
        write_config(home, site)
        outcome = await run_search("search", "tides", "--page", "1", "--json", home=home)
    assert (outcome.code, outcome.err) == (0, "")
    answer = json.loads(outcome.out)
    assert answer.keys() == {"query", "results", "engine_errors", "elapsed_ms"}
    assert site.requests[0].query["pageno"] == "2"


@pytest.mark.req("searchapp.cli")
async def test_search_without_any_answer_fails_and_says_why(home: Path) -> None:
    async with serve_site(make_handler("{}", 500)) as site:
        write_config(home, site)
        outcome = await run_search("search", "tides", home=home)
    why = "crabtalk-search: searxng: it answered 500 Internal Server Error\n"
    assert outcome == SearchOutcome(1, "", why)


@pytest.mark.req("searchapp.cli")
async def test_search_that_finds_nothing_says_so(home: Path) -> None:
    async with serve_site(make_handler('{"results": []}', content_type="application/json")) as site:
        write_config(home, site)
        assert await run_search("search", "qxzv", home=home) == SearchOutcome(
            0, "nothing found\n", ""
        )


@pytest.mark.req("searchapp.cli")
async def test_fetch_prints_a_page(home: Path) -> None:
    async with serve_site(make_handler("<title>Tides</title><p>High water</p>")) as site:
        write_config(home, site)
        outcome = await run_installed("fetch", site.url, home=home)
        in_json = await run_search("fetch", site.url, "--json", home=home)
    assert outcome == SearchOutcome(0, "# Tides\n\nHigh water\n", "")
    assert json.loads(in_json.out)["content"] == "High water"


@pytest.mark.req("searchapp.cli")
@pytest.mark.parametrize("words", [("fetch", "http://127.0.0.1:9/"), ("search", " ")])
async def test_an_error_is_one_sentence_and_status_1(home: Path, words: tuple[str, ...]) -> None:
    outcome = await run_search(*words, home=home)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"crabtalk-search: {words[0]} error: ")
    assert outcome.err.count("\n") == 1


@pytest.mark.req("searchapp.cli")
async def test_unknown_words_exit_with_status_2(home: Path) -> None:
    assert (await run_search("serch", "x", home=home)).code == 2


@pytest.mark.req("searchapp.cli")
@pytest.mark.parametrize("words", [(), ("run",), ("search",), ("fetch",)])
async def test_help_fits_a_screen_and_has_examples(home: Path, words: tuple[str, ...]) -> None:
    outcome = await run_search(*words, "--help", home=home)
    assert outcome.code == 0
    assert "Example" in outcome.out
    assert len(outcome.out.splitlines()) <= 24
    assert max(map(len, outcome.out.splitlines())) <= 80


@pytest.mark.req("searchapp.cli")
async def test_it_knows_its_version(home: Path) -> None:
    assert (await run_search("--version", home=home)).out == f"crabtalk-search {__version__}\n"


@pytest.mark.req("searchapp.cli")
async def test_help_imports_no_http_client_and_no_parser() -> None:
    code = "import sys, crabtalk_search.cli; print(*sys.modules)"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    heavy = {"aiohttp", "mcp", "selectolax", "html_to_markdown", "crabtalk.transport"}
    assert not heavy & set(out.decode().split())
