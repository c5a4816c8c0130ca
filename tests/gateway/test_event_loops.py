"""Turns whose timing depends on the event loop; tested on both."""

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from crabtalk.runtime import ToolDispatch
from tests.gateway.gateway_world import open_gateway_world


@pytest.mark.req("gateways.sender")
async def test_a_person_is_a_sender_and_is_answered(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("hello")
        await w.wait_for_texts("heard: hello")
        await w.wait_until_idle()
        assert await w.list_messages() == [("user", "hello"), ("assistant", "heard: hello")]


@pytest.mark.req("gateways.streaming")
async def test_an_answer_grows_in_one_message_within_the_rate_of_the_service(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path) as w:
        w.limits = replace(w.limits, edit_every=0.2)
        async with w.run_gateway():
            w.server.add_message("!chunks 40 40")
            await w.server.wait_until(
                lambda: len(w.server.texts_in()) == 1 and len(w.server.texts_in()[0]) > 100
            )
            await w.wait_until_idle()
    (message, *others) = w.server.messages_in("7")
    assert not others or len(message.text) > 400, "only what is too long is divided"
    assert len(message.history) >= 3
    for before, after in itertools.pairwise(message.history):
        assert after.startswith(before.rstrip())
    moments = [moment for _, _, moment in w.server.times]
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert min(gaps) > 0.15, gaps


@pytest.mark.req("gateways.steering")
async def test_a_message_during_a_turn_steers_it(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def dig(call: ToolDispatch) -> str:
        begun.set()
        await go_on.wait()
        return "sand"

    async with open_gateway_world(tmp_path, tools={"dig": dig}) as w, w.run_gateway():
        w.server.add_message("!say I dig.\n!tool dig {}\n!then\n!say Done.")
        await begun.wait()
        w.server.add_message("!say Deeper, then.")
        await w.wait_until(lambda: len(w.server.acknowledged) == 2 and not w.server.pending)
        gateway = w.gateway
        assert gateway is not None
        await w.wait_until(lambda: gateway.statistics()["waiting"] == 1)
        go_on.set()
        await w.wait_for_texts("I dig.", "Deeper, then.")
        await w.wait_until_idle()
        roles = [role for role, _ in await w.list_messages()]
        assert roles == ["user", "assistant", "tool", "user", "assistant"]


@pytest.mark.req("gateways.stop")
async def test_stop_kills_the_turn_without_waiting_in_the_queue(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("!say So far.\n!hang")
        await w.wait_for_texts("So far.")
        w.server.add_message("/agent twin")  # waits for the end of the turn
        w.server.add_message("/stop")
        await w.wait_for_texts("So far.\n\n(stopped)", "You are talking to twin now.")
        await w.wait_until_idle()
        w.server.add_message("/stop")
        await w.wait_for_texts(
            "So far.\n\n(stopped)", "You are talking to twin now.", "Nothing is going on."
        )
        await w.wait_until_idle()
