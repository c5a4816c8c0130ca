"""Once: nothing is lost, nothing is said twice, and nothing is told twice in silence."""

import asyncio
from pathlib import Path

import pytest

from crabtalk.component.gateway import GatewayError
from crabtalk.component.gateway.reply import SENT_AGAIN
from crabtalk.runtime import ToolDispatch
from tests.component.gateway.loft import Fault
from tests.component.gateway.world import world
from tests.daemon.served import calling

# What it waits for is on the wire, and the loop makes no difference.
pytestmark = pytest.mark.one_loop


@pytest.mark.req("gateways.once.duplicates")
async def test_what_comes_again_is_known(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.loft.redeliver = 0.0  # until it is taken, with every answer
        w.loft.fail("taken", *[Fault(500)] * 5)
        async with w.running():
            w.loft.says("hello", update="u5")
            await w.told("heard: hello")
            await w.idle()
            w.loft.says("hello", update="u5")
            await w.until(lambda: not w.loft.waiting)
        async with w.running():
            w.loft.says("hello", update="u5")
            await w.until(lambda: not w.loft.waiting)
            w.loft.says("bye", update="u6")
            await w.told("heard: hello", "heard: bye")
            await w.idle()
        assert await w.heard() == ["hello", "bye"]


@pytest.mark.req("gateways.once.order")
async def test_ids_out_of_order_are_answered_in_the_order_they_come(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        for number in (9, 3, 7, 1):
            w.loft.says(f"!say {number}", update=f"u{number}")
            await w.loft.until(lambda number=number: w.loft.texts()[-1:] == [str(number)])  # type: ignore[misc]
        await w.idle()
        assert w.loft.texts() == ["9", "3", "7", "1"]


@pytest.mark.req("gateways.once.journal")
async def test_an_update_is_in_the_journal_before_the_service_may_forget_it(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, has_daemon=False) as w, w.running():
        w.loft.says("remember me")
        await w.loft.until(lambda: w.loft.taken)
        assert b"remember me" in (w.home / "pigeon" / "journal").read_bytes()


@pytest.mark.req("gateways.once.restart")
async def test_a_turn_goes_on_without_the_gateway_and_is_told_by_the_next(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def dig(call: ToolDispatch) -> str:
        begun.set()
        await go_on.wait()
        return "sand"

    async with world(tmp_path, tools={"dig": dig}) as w:
        async with w.running():
            w.loft.says("!say I dig.\n!tool dig {}\n!then\n!say Found.")
            await begun.wait()
            await w.loft.until(lambda: w.loft.texts() == ["I dig.\n\n⚙ dig"])
        async with w.running():
            w.loft.says("!say And you?")
            await w.until(lambda: not w.loft.waiting)
            go_on.set()
            await w.loft.until(lambda: "And you?" in "".join(w.loft.texts()))
            await w.idle()
        assert len(await w.heard()) == 2
        assert "".join(w.loft.texts()).count("I dig.") == 1
        assert "".join(w.loft.texts()).count("And you?") == 1


@pytest.mark.req("gateways.once.restart")
async def test_an_answer_that_was_complete_while_the_gateway_was_away_is_told(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        assert w.daemon is not None
        async with w.running():
            w.loft.says("!wait\n!say Here it is.")
            await w.daemon.model.until_waiting()
        w.daemon.model.release()
        async with w.running():
            await w.told("Here it is.")
            await w.idle()
        assert len(await w.heard()) == 1


@pytest.mark.req("gateways.once.ambiguous")
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_message_that_may_have_arrived_is_sent_again_and_says_so(
    tmp_path: Path, is_done: bool
) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.fail("send", Fault(0, is_done=is_done))
        w.loft.says("hello")
        await w.loft.until(lambda: SENT_AGAIN in "".join(w.loft.texts()))
        await w.idle()
        again = f"{SENT_AGAIN}\n\nheard: hello"
        assert w.loft.texts() == (["heard: hello", again] if is_done else [again])


@pytest.mark.req("gateways.once.ambiguous")
async def test_changing_a_message_is_tried_again_without_a_word(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.fail("edit", Fault(0, is_done=True), Fault(502))
        w.loft.says("!chunks 8 40")
        await w.idle()
        (text,) = w.loft.texts()
        assert len(text.split()) == 8
        assert SENT_AGAIN not in text


async def test_a_file_that_may_have_arrived_is_sent_again_and_says_so(tmp_path: Path) -> None:
    async def send_file(call: ToolDispatch) -> str:
        (call.cwd / "report.txt").write_text("sand")
        return "sent"

    async with world(tmp_path, tools={"send_file": send_file}) as w, w.running():
        w.loft.fail("upload", Fault(0, is_done=True))
        w.loft.says(calling([("send_file", {"path": "report.txt"})]))
        await w.idle()
        captions = [message.text for message in w.loft.messages if message.file]
        assert captions == ["", SENT_AGAIN]


async def test_a_token_that_is_refused_ends_the_gateway(tmp_path: Path) -> None:
    async with world(tmp_path, has_daemon=False) as w:
        with pytest.raises(GatewayError, match="who are you"):
            async with w.running(token="wrong"):
                await w.until(lambda: w.task is not None and w.task.done())
