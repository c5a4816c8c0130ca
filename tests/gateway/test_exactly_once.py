"""Exactly once: no message is lost, none runs twice, and no answer is repeated without a mark."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from crabtalk.gateway import GatewayError
from crabtalk.gateway.streamed_reply import SENT_AGAIN_MARK
from crabtalk.runtime import ToolDispatch
from tests.daemon.in_process_daemon import script_tool_calls
from tests.gateway.gateway_world import open_gateway_world
from tests.gateway.pigeon_server import PigeonFault, PigeonServer

# It waits for network traffic, so the event loop makes no difference.
pytestmark = pytest.mark.one_loop


@pytest.mark.req("gateways.once.duplicates")
async def test_a_repeated_update_is_recognised(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        w.server.redeliver_after = 0.0  # repeated in every reply until it is acknowledged
        w.server.inject_faults("taken", *[PigeonFault(500)] * 5)
        async with w.run_gateway():
            w.server.add_message("hello", update="u5")
            await w.wait_for_texts("heard: hello")
            await w.wait_until_idle()
            w.server.add_message("hello", update="u5")
            await w.wait_until(lambda: not w.server.pending)
        async with w.run_gateway():
            w.server.add_message("hello", update="u5")
            await w.wait_until(lambda: not w.server.pending)
            w.server.add_message("bye", update="u6")
            await w.wait_for_texts("heard: hello", "heard: bye")
            await w.wait_until_idle()
        assert await w.list_user_messages() == ["hello", "bye"]


@pytest.mark.req("gateways.once.order")
async def test_ids_out_of_order_are_answered_in_the_order_they_come(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        for number in (9, 3, 7, 1):
            w.server.add_message(f"!say {number}", update=f"u{number}")
            await w.server.wait_until(partial(has_last_text, w.server, str(number)))
        await w.wait_until_idle()
        assert w.server.texts_in() == ["9", "3", "7", "1"]


@pytest.mark.req("gateways.once.journal")
async def test_an_update_is_in_the_journal_before_the_service_may_forget_it(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path, has_daemon=False) as w, w.run_gateway():
        w.server.add_message("remember me")
        await w.server.wait_until(lambda: w.server.acknowledged)
        assert b"remember me" in (w.home / "pigeon" / "journal").read_bytes()


@pytest.mark.req("gateways.once.restart")
async def test_a_turn_goes_on_without_the_gateway_and_the_next_one_delivers_its_answer(
    tmp_path: Path,
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def dig(call: ToolDispatch) -> str:
        begun.set()
        await go_on.wait()
        return "sand"

    async with open_gateway_world(tmp_path, tools={"dig": dig}) as w:
        async with w.run_gateway():
            w.server.add_message("!say I dig.\n!tool dig {}\n!then\n!say Found.")
            await begun.wait()
            await w.server.wait_until(lambda: w.server.texts_in() == ["I dig.\n\n⚙ dig"])
        async with w.run_gateway():
            w.server.add_message("!say And you?")
            await w.wait_until(lambda: not w.server.pending)
            go_on.set()
            await w.server.wait_until(lambda: "And you?" in "".join(w.server.texts_in()))
            await w.wait_until_idle()
        assert len(await w.list_user_messages()) == 2
        assert "".join(w.server.texts_in()).count("I dig.") == 1
        assert "".join(w.server.texts_in()).count("And you?") == 1


@pytest.mark.req("gateways.once.restart")
async def test_an_answer_that_was_completed_while_the_gateway_was_away_is_delivered(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path) as w:
        assert w.daemon is not None
        async with w.run_gateway():
            w.server.add_message("!wait\n!say Here it is.")
            await w.daemon.model.until_waiting()
        w.daemon.model.release()
        async with w.run_gateway():
            await w.wait_for_texts("Here it is.")
            await w.wait_until_idle()
        assert len(await w.list_user_messages()) == 1


@pytest.mark.req("gateways.once.ambiguous")
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_message_that_may_have_arrived_is_sent_again_with_a_mark(
    tmp_path: Path, is_done: bool
) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.inject_faults("send", PigeonFault(0, is_done=is_done))
        w.server.add_message("hello")
        await w.server.wait_until(lambda: SENT_AGAIN_MARK in "".join(w.server.texts_in()))
        await w.wait_until_idle()
        repeat = f"{SENT_AGAIN_MARK}\n\nheard: hello"
        assert w.server.texts_in() == (["heard: hello", repeat] if is_done else [repeat])


@pytest.mark.req("gateways.once.ambiguous")
async def test_a_failed_edit_is_repeated_without_a_mark(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.inject_faults("edit", PigeonFault(0, is_done=True), PigeonFault(502))
        w.server.add_message("!chunks 8 40")
        await w.wait_until_idle()
        (text,) = w.server.texts_in()
        assert len(text.split()) == 8
        assert SENT_AGAIN_MARK not in text


async def test_a_file_that_may_have_arrived_is_sent_again_with_a_mark(tmp_path: Path) -> None:
    async def send_file(call: ToolDispatch) -> str:
        (call.cwd / "report.txt").write_text("sand")
        return "sent"

    async with open_gateway_world(tmp_path, tools={"send_file": send_file}) as w, w.run_gateway():
        w.server.inject_faults("upload", PigeonFault(0, is_done=True))
        w.server.add_message(script_tool_calls([("send_file", {"path": "report.txt"})]))
        await w.wait_until_idle()
        captions = [message.text for message in w.server.messages if message.file]
        assert captions == ["", SENT_AGAIN_MARK]


async def test_a_token_that_is_refused_ends_the_gateway(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, has_daemon=False) as w:
        with pytest.raises(GatewayError, match="who are you"):
            async with w.run_gateway(token="wrong"):
                await w.wait_until(lambda: w.task is not None and w.task.done())


def has_last_text(server: PigeonServer, text: str) -> bool:
    return server.texts_in()[-1:] == [text]
