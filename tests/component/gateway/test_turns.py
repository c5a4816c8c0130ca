"""What people see of a turn."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crabtalk.runtime import ToolDispatch
from tests.component.gateway.loft import Fault
from tests.component.gateway.world import world
from tests.daemon.served import calling

# What it waits for is on the wire; what differs between loops is in test_loops.
pytestmark = pytest.mark.one_loop


@pytest.mark.req("gateways.group")
async def test_a_group_is_one_sender_in_which_speakers_are_named(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        group: dict[str, Any] = {"chat": "-5", "is_group": True}
        w.loft.says("not for us", "8", name="Bo", is_to_us=False, **group)
        w.loft.says("hello", "7", name="Ann", **group)
        await w.told("heard: Ann: hello", chat="-5")
        w.loft.says("hi", "8", name="Bo\nthe second", **group)
        await w.told("heard: Ann: hello", "heard: Bo the second: hi", chat="-5")
        assert w.loft.of("-5")[0].reply_to == "m-u2"
        await w.idle()
        assert await w.heard("pg:group:-5") == ["Ann: hello", "Bo the second: hi"]


@pytest.mark.req("gateways.splitting")
async def test_a_long_answer_is_several_messages_without_a_word_lost(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(400))
    async with world(tmp_path) as w, w.running():
        w.loft.says(f"!say {words}")
        await w.loft.until(lambda: "word399" in "".join(w.loft.texts()))
        await w.idle()
    assert " ".join(w.loft.texts()).split() == words.split()
    assert all(len(text) <= 500 for text in w.loft.texts())


@pytest.mark.req("gateways.tools")
async def test_tools_are_one_changing_line_and_thinking_is_not_shown(tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def dig(call: ToolDispatch) -> str:
        await seen.wait()
        return "sand"

    async with world(tmp_path, tools={"dig": dig}) as w, w.running():
        w.loft.says('!think secret\n!say I look.\n!tool dig {"where": "beach"}\n!then\n!say Found.')
        await w.loft.until(lambda: any("⚙ dig(beach)" in text for text in w.loft.texts()))
        assert w.loft.texts() == ["I look.\n\n⚙ dig(beach)"]
        seen.set()
        await w.told("I look.\n\nFound.")
        await w.idle()
    assert not any("secret" in text for one in w.loft.messages for text in one.history)


@pytest.mark.req("gateways.steering")
async def test_what_follows_a_word_of_ones_own_is_said_below_it(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def dig(call: ToolDispatch) -> str:
        await go_on.wait()
        return "sand"

    async with world(tmp_path, tools={"dig": dig}) as w, w.running() as gateway:
        w.loft.says('!tool dig {"where": "beach"}\n!then\n!say Done.')
        await w.told("⚙ dig(beach)")
        w.loft.says("!say Deeper.")
        await w.until(lambda: len(w.loft.taken) == 2 and gateway.statistics()["waiting"] == 1)
        go_on.set()
        await w.told("✓ dig(beach)", "Deeper.")
        await w.idle()


@pytest.mark.req("gateways.streaming")
@pytest.mark.req("gateways.final")
@pytest.mark.parametrize("parts", [False, True])
async def test_without_edits_an_answer_comes_at_its_end_or_in_parts(
    tmp_path: Path, parts: bool
) -> None:
    async def dig(call: ToolDispatch) -> str:
        return "sand"

    async def send_file(call: ToolDispatch) -> str:
        (call.cwd / "report.txt").write_text("sand")
        return "sent"

    async with world(tmp_path, tools={"dig": dig, "send_file": send_file}) as w:
        w.limits = replace(w.limits, edits=False, parts=parts)
        async with w.running():
            sending = '!tool send_file {"path": "report.txt"}'
            w.loft.says(
                f"!say I look.\n!tool dig {{}}\n!then\n!say Found.\n{sending}\n!then\n!say So."
            )
            text = ["I look.", "Found.", "", "So."] if parts else ["", "I look.\n\nFound.\n\nSo."]
            await w.told(*text)
            await w.idle()
    assert [one.file[0] for one in w.loft.messages if one.file] == ["report.txt"]
    assert "edit" not in w.loft.calls


@pytest.mark.req("gateways.final")
async def test_without_edits_words_in_between_divide_no_answer(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def dig(call: ToolDispatch) -> str:
        begun.set()
        await go_on.wait()
        return "sand"

    async with world(tmp_path, tools={"dig": dig}) as w:
        w.limits = replace(w.limits, edits=False)
        async with w.running() as gateway:
            w.loft.says("!say I dig.\n!tool dig {}\n!then\n!say Done.")
            await begun.wait()
            w.loft.says("!say Deeper.")
            await w.until(lambda: len(w.loft.taken) == 2 and gateway.statistics()["waiting"] == 1)
            go_on.set()
            await w.told("I dig.\n\nDeeper.")
            await w.idle()


@pytest.mark.req("gateways.typing")
async def test_while_an_agent_works_the_chat_shows_typing(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.limits = replace(w.limits, typing_every=0.02)
        async with w.running():
            assert w.daemon is not None
            w.loft.says("!wait\n!say done")
            await w.until(lambda: len(w.loft.typing) >= 3)
            await w.daemon.model.until_waiting()
            w.daemon.model.release()
            await w.told("done")
            await w.idle()


@pytest.mark.req("gateways.guest")
async def test_a_guest_speaks_once_and_its_words_carry_its_name(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.says("hello")
        await w.told("heard: hello")
        w.loft.says("@twin !say I am here")
        await w.told("heard: hello", "**twin:** I am here")
        w.loft.says("/guest twin !say again")
        await w.told("heard: hello", "**twin:** I am here", "**twin:** again")
        w.loft.says("@nobody hi")
        await w.loft.until(lambda: w.loft.texts()[-1] == "heard: @nobody hi")
        await w.idle()
        assert w.daemon is not None
        async with w.daemon.client() as client:
            page = await client.list_messages("crab", sender="pg:7")
            assert [m.agent for m in page.messages if m.role == "assistant"] == [
                "",
                "twin",
                "twin",
                "",
            ]


@pytest.mark.req("gateways.steering")
async def test_what_comes_too_early_to_steer_or_too_late_is_not_lost(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        for number in range(20):
            w.loft.says(f"!say {number}")
        await w.until(lambda: len(w.loft.taken) == 20)
        await w.idle()
        assert await w.heard() == [f"!say {number}" for number in range(20)]


@pytest.mark.req("gateways.stop")
async def test_stop_right_behind_a_message_stops_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.says("!hang")
        w.loft.says("/stop")
        await w.told("(stopped)")
        await w.idle()


async def test_a_turn_that_fails_says_why(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.says("!status 400 no such model")
        await w.loft.until(lambda: w.loft.texts())
        assert w.loft.texts()[0].startswith("⚠️ ")
        assert "no such model" in w.loft.texts()[0]
        w.loft.says("!nothing")
        await w.loft.until(lambda: len(w.loft.texts()) == 2)
        assert w.loft.texts()[1] == "(no answer)"
        await w.idle()


async def test_an_agent_that_is_not_there_is_an_error_in_the_chat(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running(agent="ghost", agents=()):
        w.loft.says("hello")
        await w.loft.until(lambda: w.loft.texts())
        assert w.loft.texts()[0].startswith("⚠️ ")
        await w.idle()


@pytest.mark.req("gateways.limits")
async def test_a_service_that_asks_to_wait_is_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.fail("send", Fault(429, seconds=0.05), Fault(429, seconds=0.05))
        w.loft.fail("edit", Fault(429, seconds=0.05))
        w.loft.says("!chunks 5 50")
        await w.idle()
        assert len(w.loft.texts()) == 1
        assert len(w.loft.texts()[0].split()) == 5
        assert "sent again" not in w.loft.texts()[0]


@pytest.mark.req("gateways.limits")
async def test_a_message_the_service_finds_too_long_is_split_smaller(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.limit = 200
        words = " ".join(f"word{number}" for number in range(100))
        w.loft.says(f"!say {words}")
        await w.idle()
        assert " ".join(w.loft.texts()).split() == words.split()
        assert all(len(text) <= 200 for text in w.loft.texts())


@pytest.mark.req("gateways.blocked")
async def test_who_blocks_the_bot_ends_their_turn_and_nobody_elses(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.blocked.add("7")
        w.loft.says("!say So far.\n!hang", "7")
        w.loft.says("hello", "8")
        await w.told("heard: hello", chat="8")
        await w.idle()
        assert w.loft.texts("7") == []
        assert w.daemon is not None
        await w.until(lambda: w.daemon is not None and w.daemon.model.hangups == 1)


async def test_a_message_that_was_deleted_is_said_in_another(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.says("!say So far.\n!wait\n!say The end.")
        await w.told("So far.")
        w.loft.messages.clear()
        assert w.daemon is not None
        await w.daemon.model.until_waiting()
        w.daemon.model.release()
        await w.told("So far.The end.")
        await w.idle()


@pytest.mark.req("gateways.files.in")
async def test_files_are_in_the_inbox_and_named_to_the_agent(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.says("look", files=[("../../shell.png", b"PNG"), ("notes.txt", b"sand")])
        await w.loft.until(lambda: w.loft.texts() and "notes.txt" in "".join(w.loft.texts()))
        await w.idle()
        (said,) = await w.heard()
        text, _, listed = said.partition("\n\nFiles:\n")
        assert text == "look"
        first, second = (Path(line.removeprefix("- ")) for line in listed.splitlines())
        assert first.read_bytes() == b"PNG"
        assert second.read_bytes() == b"sand"
        assert first.name == "shell.png"
        assert first.is_relative_to(w.home / "files")


async def test_a_file_that_cannot_be_had_is_said_so_to_the_agent(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.fail("files/f2", Fault(404))
        w.loft.says("", files=[("a.txt", b"a")])
        await w.idle()
        (said,) = await w.heard()
        assert said == "See these files.\n\nFiles:\n- a.txt: could not be fetched"


@pytest.mark.req("gateways.files.out")
async def test_a_file_the_agent_sends_is_uploaded_once(tmp_path: Path) -> None:
    async def send_file(call: ToolDispatch) -> str:
        (call.cwd / "report.txt").write_text("sand")
        return "sent"

    async with world(tmp_path, tools={"send_file": send_file}) as w, w.running():
        w.loft.says(calling([("send_file", {"path": "report.txt"})]))
        await w.loft.until(lambda: "done" in w.loft.texts())
        await w.idle()
        (sent,) = [message.file for message in w.loft.messages if message.file]
        assert sent == ("report.txt", b"sand")


@pytest.mark.req("gateways.files.out")
async def test_a_file_outside_the_conversations_directory_is_not_sent(tmp_path: Path) -> None:
    async def send_file(call: ToolDispatch) -> str:
        return "sent"

    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    async with world(tmp_path, tools={"send_file": send_file}) as w, w.running():
        w.loft.says(calling([("send_file", {"path": str(secret)})]))
        await w.loft.until(lambda: "done" in w.loft.texts())
        await w.idle()
        assert not [message for message in w.loft.messages if message.file]
        assert any("is not a file under" in text for text in w.loft.texts())


@pytest.mark.req("gateways.separation")
async def test_two_people_never_share_a_conversation(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.says("secret", "7")
        w.loft.says("hello", "8")
        await w.told("heard: secret", chat="7")
        await w.told("heard: hello", chat="8")
        w.loft.says("/search secret", "8")
        await w.told("heard: hello", "Nothing was found for “secret”.", chat="8")
        await w.idle()
        assert w.daemon is not None
        shown = [json.dumps(request) for request in w.daemon.model.requests]
        assert not any("secret" in one and "hello" in one for one in shown)
