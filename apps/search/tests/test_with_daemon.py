"""crabtalk-search beside a daemon: found without configuration, and every agent can search."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest

from apps.search.tests.sites import always, configure, saved, serving
from apps.search.tests.test_component import PATIENCE, running
from crabtalk.client import Client
from crabtalk.protocol import wire
from tests.daemon.served import called, served

ASK = [("search", {"query": "tides"})]


async def found(client: Client) -> None:
    """Waits until the daemon has its tools."""
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
    site_says = always(saved("searxng.json"), content_type="application/json")
    async with (
        serving(site_says) as site,
        served(tmp_path, hooks={}) as daemon,
        daemon.client() as client,
    ):
        configure(daemon.home, site)
        async with running(daemon.home) as process:
            await found(client)
            (first,) = await called(client, "crab", ASK)
            assert json.loads(first.output)["results"]
            (refused,) = await called(client, "crab", [("fetch", {"url": "http://10.0.0.1/"})])
            assert refused.output.startswith("mcp tool error: fetch error: 10.0.0.1 is not")
            process.kill()
            await process.wait()
            async with asyncio.timeout(PATIENCE):
                while (await client.list_mcps()).mcps:
                    await asyncio.sleep(0.01)
        async with running(daemon.home):
            await found(client)
            (again,) = await called(client, "twin", ASK)
            assert json.loads(again.output)["results"] == json.loads(first.output)["results"]
