"""crabtalk-search as a component: a process with two tools and a port file."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import TextContent

from apps.search.tests.local_sites import make_handler, read_saved_page, serve_site, write_config
from apps.search.tests.search_command import PROGRAM, SEARCH_LAUNCHER
from crabtalk.service import PortFile
from tests.forked_programs import PIPE, ForkedProcess

PATIENCE = 40


@asynccontextmanager
async def run_component(
    home: Path, *, is_installed: bool = False
) -> AsyncIterator[ForkedProcess | asyncio.subprocess.Process]:
    """Run `crabtalk-search run`, and wait for its port file."""
    file = PortFile.for_component(home, "search")
    old = file.read_port()
    arguments = ("run", "--home", str(home))
    process: ForkedProcess | asyncio.subprocess.Process
    if is_installed:
        process = await asyncio.create_subprocess_exec(PROGRAM, *arguments, stderr=PIPE)
    else:
        process = SEARCH_LAUNCHER.start(*arguments, stderr=PIPE)
    try:
        async with asyncio.timeout(PATIENCE):
            while file.read_port() in (None, old):
                assert process.returncode is None, await process.communicate()
                await asyncio.sleep(0.01)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def open_client(home: Path) -> Client:
    return Client(f"http://127.0.0.1:{PortFile.for_component(home, 'search').read_port()}/mcp")


async def call_tool(client: Client, tool: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(tool, arguments)
    [content] = result.content
    assert isinstance(content, TextContent)
    assert result.structured_content is None
    return bool(result.is_error), content.text


@pytest.mark.req("searchapp.tools")
async def test_its_tools_are_search_and_fetch(home: Path) -> None:
    async with run_component(home, is_installed=True), open_client(home) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert tools.keys() == {"search", "fetch"}
    search, fetch = tools["search"].input_schema, tools["fetch"].input_schema
    assert search["required"] == ["query"]
    assert search["properties"].keys() == {"query", "page"}
    assert search["properties"]["page"]["default"] == 0
    assert fetch["required"] == ["url"]
    assert fetch["properties"].keys() == {"url"}


@pytest.mark.req("searchapp.search.shape")
async def test_search_answers_in_the_known_shape(home: Path) -> None:
    async with serve_site(
        make_handler(read_saved_page("searxng.json"), content_type="application/json")
    ) as site:
        write_config(home, site)
        async with run_component(home), open_client(home) as client:
            is_error, text = await call_tool(client, "search", query=" tide  tables", page=None)
    answer = json.loads(text)
    elapsed = answer.pop("elapsed_ms")
    assert isinstance(elapsed, int)
    assert not is_error
    assert answer == {
        "query": "tide tables",
        "results": [
            {
                "title": "Tides",
                "url": "https://tides.example/",
                "description": "All the tides.",
                "engines": ["searxng"],
                "score": 1.0,
            },
            {
                "title": "The moon",
                "url": "https://moon.example/",
                "description": "",
                "engines": ["searxng"],
                "score": 0.5,
            },
        ],
        "engine_errors": [],
    }


@pytest.mark.req("searchapp.search.shape")
async def test_a_failed_engine_is_in_the_answer(home: Path) -> None:
    async with serve_site(make_handler("no", 500)) as site:
        write_config(home, site)
        async with run_component(home), open_client(home) as client:
            is_error, text = await call_tool(client, "search", query="tides")
    assert not is_error
    answer = json.loads(text)
    assert answer["results"] == []
    assert answer["engine_errors"] == [
        {"engine": "searxng", "error": "it answered 500 Internal Server Error"}
    ]


@pytest.mark.req("searchapp.fetch.shape")
async def test_fetch_answers_in_the_known_shape(home: Path) -> None:
    async with serve_site(make_handler("<title>T</title><p>Wörter</p>")) as site:
        write_config(home, site)
        async with run_component(home), open_client(home) as client:
            is_error, text = await call_tool(client, "fetch", url=f"{site.url}/x")
    assert not is_error
    assert json.loads(text) == {
        "url": f"{site.url}/x",
        "title": "T",
        "content": "Wörter",
        "content_length": 6,
    }


@pytest.mark.req("searchapp.tools.errors")
async def test_errors_have_the_prefixes_that_agents_know(home: Path) -> None:
    async with run_component(home), open_client(home) as client:
        is_error, text = await call_tool(client, "search", query=" ")
        assert (is_error, text) == (True, "search error: the query is empty: say what to look for")
        is_error, text = await call_tool(client, "fetch", url="http://127.0.0.1:1/")
        assert is_error
        assert text.startswith("fetch error: 127.0.0.1 is not a public address")


@pytest.mark.req("searchapp.killed")
async def test_killed_and_restarted_it_is_found_at_its_new_port(home: Path) -> None:
    async with serve_site(
        make_handler(read_saved_page("searxng.json"), content_type="application/json")
    ) as site:
        write_config(home, site)
        async with run_component(home) as process:
            process.send_signal(signal.SIGKILL)
            await process.wait()
            stale = PortFile.for_component(home, "search")
            port = stale.read_port()
            assert port is not None
            assert not stale.is_listening()
        async with run_component(home), open_client(home) as client:
            assert PortFile.for_component(home, "search").read_port() != port
            is_error, text = await call_tool(client, "search", query="tides")
    assert not is_error
    assert json.loads(text)["results"]


@pytest.mark.req("searchapp.tools")
async def test_it_logs_into_the_home_and_warns_of_unknown_keys(home: Path) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "search.toml").write_text("engine = 1\n")
    log = home / "logs" / "search.log"
    async with run_component(home), asyncio.timeout(PATIENCE):
        # The port file is there a moment before the log line.
        while "search is ready: http://127.0.0.1:" not in log.read_text():
            await asyncio.sleep(0.01)
    assert "engine, which means nothing here" in log.read_text()


@pytest.mark.req("searchapp.config")
async def test_an_invalid_configuration_is_reported(home: Path) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "search.toml").write_text("engines = [")
    status, _, error = await SEARCH_LAUNCHER.run_and_capture(
        "run", env={**os.environ, "CRABTALK_HOME": str(home)}
    )
    assert status == 1
    assert error.startswith("crabtalk-search: cannot read ")
    assert error.count("\n") == 1
