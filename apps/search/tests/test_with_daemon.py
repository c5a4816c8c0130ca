"""crabtalk-search beside a daemon: found without configuration, for every agent."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest

from apps.search.tests.local_sites import make_handler, read_saved_page, serve_site, write_config
from apps.search.tests.test_component import PATIENCE, run_component
from crabtalk.client import Client
from crabtalk.protocol import wire
from tests.daemon.in_process_daemon import run_daemon, run_tool_calls

ASK = [("search", {"query": "tides"})]


async def wait_until_connected(client: Client) -> None:
    """Wait until the daemon has the tools."""
    async with asyncio.timeout(PATIENCE), aclosing(client.subscribe_mcp_events()) as events:
        async for event in events:
            if (event.name, event.kind) == ("search", wire.MCP_EVENT_KIND_CONNECTED):
                return


@pytest.mark.slow
@pytest.mark.req("searchapp.tools")
@pytest.mark.req("searchapp.killed")
async def test_an_agent_searches_and_does_so_again_after_the_component_was_killed(
    tmp_path: Path,
) -> None:
    site_says = make_handler(read_saved_page("searxng.json"), content_type="application/json")
    async with (
        serve_site(site_says) as site,
        run_daemon(tmp_path, hooks={}) as daemon,
        daemon.client() as client,
    ):
        write_config(daemon.home, site)
        async with run_component(daemon.home) as process:
            await wait_until_connected(client)
            (first,) = await run_tool_calls(client, "crab", ASK)
            assert json.loads(first.output)["results"]
            (refused,) = await run_tool_calls(
                client, "crab", [("fetch", {"url": "http://10.0.0.1/"})]
            )
            assert refused.output.startswith("mcp tool error: fetch error: 10.0.0.1 is not")
            process.kill()
            await process.wait()
            async with asyncio.timeout(PATIENCE):
                while (await client.list_mcps()).mcps:
                    await asyncio.sleep(0.01)
        async with run_component(daemon.home):
            await wait_until_connected(client)
            (second_answer,) = await run_tool_calls(client, "twin", ASK)
            assert (
                json.loads(second_answer.output)["results"] == json.loads(first.output)["results"]
            )
