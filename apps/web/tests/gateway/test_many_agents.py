"""Many agents: one gateway and one socket, and each agent can be called."""

import asyncio
import time
from pathlib import Path

import pytest

from apps.web.tests.gateway.device_client import check_order, list_texts
from apps.web.tests.gateway.web_gateway_world import open_world

COUNT = 300


@pytest.mark.slow
@pytest.mark.one_loop
@pytest.mark.timeout(120)
@pytest.mark.req("gateway.many")
async def test_three_hundred_agents_are_shown_and_can_be_called(tmp_path: Path) -> None:
    agents = {f"crab{number:03}": 'prompt = "You are a crab."\n' for number in range(COUNT)}
    async with open_world(tmp_path, agents=agents) as world:
        async with asyncio.timeout(60):
            while len(found := await world.phone.list_all_sessions()) < COUNT:
                await asyncio.sleep(0.1)
        sessions = {session.metadata["name"]: session for session in found}
        assert sorted(sessions) == sorted(agents)
        await world.phone.connect()
        for name in ("crab000", "crab150", "crab299"):
            assert await world.phone.call_method(sessions[name], "abort") is None
            await world.phone.send_text(sessions[name], f"!say I am {name}")
            envelopes = check_order(await world.phone.wait_for_turns(sessions[name]))
            assert list_texts(envelopes) == [f"I am {name}"]
        began = time.monotonic()
        await world.stop_gateway()
        await world.start_gateway()
        for name in ("crab299", "crab000"):
            assert await world.phone.call_method(sessions[name], "abort") is None
        assert time.monotonic() - began < 60
