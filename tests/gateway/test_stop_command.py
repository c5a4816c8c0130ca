"""/stop: it stops whatever runs in the chat, and nothing else."""

from pathlib import Path

import pytest

from crabtalk.gateway.gateway_turn import STOPPED_NOTE
from crabtalk.gateway.outgoing_messages import DAEMON_AWAY_NOTICE
from tests.daemon.in_process_daemon import AGENTS
from tests.gateway.gateway_world import GatewayWorld, open_gateway_world

pytestmark = [pytest.mark.one_loop, pytest.mark.req("gateways.stop")]

# A long prompt is part of the summary request, which makes a compaction slow.
SLOW = {**AGENTS, "crab": 'prompt = """You are crab.\n!wait\n!say It was about sand."""\n'}
FOLDED = "Folded into a summary:\n\nIt was about sand."


async def start_compaction(w: GatewayWorld, *more: str) -> None:
    """Start a compaction, wait until the model is asked for a summary, and send the rest."""
    w.server.add_message("hello")
    await w.wait_for_texts("heard: hello")
    w.server.add_message("/compact")
    assert w.daemon is not None
    await w.daemon.model.until_waiting()
    for text in more:
        w.server.add_message(text)


@pytest.mark.req("gateways.compact")
async def test_stop_stops_a_compaction_without_changing_the_conversation(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, agents=SLOW) as w, w.run_gateway():
        await start_compaction(w, "!say And now?", "/stop")
        await w.wait_for_texts("heard: hello", STOPPED_NOTE, "And now?")
        await w.wait_until_idle()
        assert w.daemon is not None
        await w.daemon.model.until_hung_up()
        async with w.daemon.client() as client:
            assert not (await client.list_archives("crab", sender="pg:7")).archives


@pytest.mark.req("gateways.compact")
async def test_stop_right_after_a_compaction_command_stops_it(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, agents=SLOW) as w, w.run_gateway():
        w.server.add_message("hello")
        await w.wait_for_texts("heard: hello")
        await w.wait_until_idle()
        w.server.add_message("/compact")
        w.server.add_message("/stop")
        await w.wait_for_texts("heard: hello", STOPPED_NOTE)
        await w.wait_until_idle()


@pytest.mark.req("gateways.compact")
@pytest.mark.req("gateways.once.restart")
@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_compaction_goes_on_without_the_gateway_and_the_next_one_can_stop_it(
    tmp_path: Path, is_stopped: bool
) -> None:
    async with open_gateway_world(tmp_path, agents=SLOW) as w:
        async with w.run_gateway():
            await start_compaction(w)
        async with w.run_gateway() as gateway:
            await w.wait_until(lambda: gateway.statistics()["chats_at_work"] == 1)
            if is_stopped:
                w.server.add_message("/stop")
            else:
                assert w.daemon is not None
                w.daemon.model.release()
            await w.wait_for_texts("heard: hello", STOPPED_NOTE if is_stopped else FOLDED)
            await w.wait_until_idle()


async def test_a_stopped_command_that_waited_for_the_daemon_is_not_carried_out(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path, has_daemon=False) as w, w.run_gateway():
        async with w.serve_daemon() as w.daemon:
            w.server.add_message("hello")
            await w.wait_for_texts("heard: hello")
            await w.wait_until_idle()
        w.server.add_message("/new")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == DAEMON_AWAY_NOTICE)
        w.server.add_message("/stop")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == STOPPED_NOTE)
        await w.wait_until_idle()
        async with w.serve_daemon() as w.daemon:
            w.server.add_message("hello again")
            await w.server.wait_until(lambda: w.server.texts_in()[-1] == "heard: hello again")
            await w.wait_until_idle()
            async with w.daemon.client() as client:
                assert not (await client.list_archives("crab", sender="pg:7")).archives


async def test_stop_ends_the_turn_that_ran_when_it_came_and_no_later_one(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        for number in range(5):
            w.server.messages.clear()
            w.server.add_message("!hang")
            w.server.add_message(f"@twin !say {number}")
            w.server.add_message("/stop")
            await w.wait_for_texts(STOPPED_NOTE, f"**twin:** {number}")
            await w.wait_until_idle()
