"""/stop: what runs is stopped, whatever it is, and nothing else is."""

from pathlib import Path

import pytest

from crabtalk.component.gateway.posting import AWAY
from crabtalk.component.gateway.turn import STOPPED
from tests.component.gateway.world import World, world
from tests.daemon.served import AGENTS

pytestmark = [pytest.mark.one_loop, pytest.mark.req("gateways.stop")]

# What an agent is told about itself is part of what is summarised: so it takes its time.
SLOW = {**AGENTS, "crab": 'prompt = """You are crab.\n!wait\n!say It was about sand."""\n'}
FOLDED = "Folded into a summary:\n\nIt was about sand."


async def compacting(w: World, *more: str) -> None:
    """Until the model is asked for a summary. Then the rest is said."""
    w.loft.says("hello")
    await w.told("heard: hello")
    w.loft.says("/compact")
    assert w.daemon is not None
    await w.daemon.model.until_waiting()
    for text in more:
        w.loft.says(text)


@pytest.mark.req("gateways.compact")
async def test_stop_stops_a_compaction_and_nothing_has_changed(tmp_path: Path) -> None:
    async with world(tmp_path, agents=SLOW) as w, w.running():
        await compacting(w, "!say And now?", "/stop")
        await w.told("heard: hello", STOPPED, "And now?")
        await w.idle()
        assert w.daemon is not None
        await w.daemon.model.until_hung_up()
        async with w.daemon.client() as client:
            assert not (await client.list_archives("crab", sender="pg:7")).archives


@pytest.mark.req("gateways.compact")
async def test_stop_right_behind_a_compaction_stops_it(tmp_path: Path) -> None:
    async with world(tmp_path, agents=SLOW) as w, w.running():
        w.loft.says("hello")
        await w.told("heard: hello")
        await w.idle()
        w.loft.says("/compact")
        w.loft.says("/stop")
        await w.told("heard: hello", STOPPED)
        await w.idle()


@pytest.mark.req("gateways.compact")
@pytest.mark.req("gateways.once.restart")
@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_compaction_goes_on_without_the_gateway_and_the_next_one_can_stop_it(
    tmp_path: Path, is_stopped: bool
) -> None:
    async with world(tmp_path, agents=SLOW) as w:
        async with w.running():
            await compacting(w)
        async with w.running() as gateway:
            await w.until(lambda: gateway.statistics()["chats_at_work"] == 1)
            if is_stopped:
                w.loft.says("/stop")
            else:
                assert w.daemon is not None
                w.daemon.model.release()
            await w.told("heard: hello", STOPPED if is_stopped else FOLDED)
            await w.idle()


async def test_a_command_that_waits_for_the_daemon_is_not_carried_out_once_stopped(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, has_daemon=False) as w, w.running():
        async with w.serving() as w.daemon:
            w.loft.says("hello")
            await w.told("heard: hello")
            await w.idle()
        w.loft.says("/new")
        await w.loft.until(lambda: w.loft.texts()[-1] == AWAY)
        w.loft.says("/stop")
        await w.loft.until(lambda: w.loft.texts()[-1] == STOPPED)
        await w.idle()
        async with w.serving() as w.daemon:
            w.loft.says("hello again")
            await w.loft.until(lambda: w.loft.texts()[-1] == "heard: hello again")
            await w.idle()
            async with w.daemon.client() as client:
                assert not (await client.list_archives("crab", sender="pg:7")).archives


async def test_stop_is_for_what_ran_when_it_came_and_not_for_what_follows(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        for number in range(5):
            w.loft.messages.clear()
            w.loft.says("!hang")
            w.loft.says(f"@twin !say {number}")
            w.loft.says("/stop")
            await w.told(STOPPED, f"**twin:** {number}")
            await w.idle()
