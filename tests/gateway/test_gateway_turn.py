"""What people see of a turn."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crabtalk.runtime import ToolDispatch
from tests.daemon.in_process_daemon import script_tool_calls
from tests.gateway.gateway_world import open_gateway_world
from tests.gateway.pigeon_server import PigeonFault

# It waits for network traffic; tests that depend on the event loop are in test_event_loops.
pytestmark = pytest.mark.one_loop


@pytest.mark.req("gateways.group")
async def test_a_group_is_one_sender_and_its_messages_name_their_authors(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        group: dict[str, Any] = {"chat": "-5", "is_group": True}
        w.server.add_message("not for us", "8", name="Bo", is_to_us=False, **group)
        w.server.add_message("hello", "7", name="Ann", **group)
        await w.wait_for_texts("heard: Ann: hello", chat="-5")
        w.server.add_message("hi", "8", name="Bo\nthe second", **group)
        await w.wait_for_texts("heard: Ann: hello", "heard: Bo the second: hi", chat="-5")
        assert w.server.messages_in("-5")[0].reply_to == "m-u2"
        await w.wait_until_idle()
        assert await w.list_user_messages("pg:group:-5") == ["Ann: hello", "Bo the second: hi"]


@pytest.mark.req("gateways.splitting")
async def test_a_long_answer_is_several_messages_without_a_word_lost(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(400))
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message(f"!say {words}")
        await w.server.wait_until(lambda: "word399" in "".join(w.server.texts_in()))
        await w.wait_until_idle()
    assert " ".join(w.server.texts_in()).split() == words.split()
    assert all(len(text) <= 500 for text in w.server.texts_in())


@pytest.mark.req("gateways.tools")
async def test_running_tools_are_one_status_line_and_thinking_is_not_shown(tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def dig(call: ToolDispatch) -> str:
        await seen.wait()
        return "sand"

    async with open_gateway_world(tmp_path, tools={"dig": dig}) as w, w.run_gateway():
        w.server.add_message(
            '!think secret\n!say I look.\n!tool dig {"where": "beach"}\n!then\n!say Found.'
        )
        await w.server.wait_until(
            lambda: any("⚙ dig(beach)" in text for text in w.server.texts_in())
        )
        assert w.server.texts_in() == ["I look.\n\n⚙ dig(beach)"]
        seen.set()
        await w.wait_for_texts("I look.\n\nFound.")
        await w.wait_until_idle()
    assert not any("secret" in text for message in w.server.messages for text in message.history)


@pytest.mark.req("gateways.steering")
async def test_text_after_a_steering_message_is_in_a_new_message_below_it(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def dig(call: ToolDispatch) -> str:
        await go_on.wait()
        return "sand"

    async with open_gateway_world(tmp_path, tools={"dig": dig}) as w, w.run_gateway() as gateway:
        w.server.add_message('!tool dig {"where": "beach"}\n!then\n!say Done.')
        await w.wait_for_texts("⚙ dig(beach)")
        w.server.add_message("!say Deeper.")
        await w.wait_until(
            lambda: len(w.server.acknowledged) == 2 and gateway.statistics()["waiting"] == 1
        )
        go_on.set()
        await w.wait_for_texts("✓ dig(beach)", "Deeper.")
        await w.wait_until_idle()


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

    async with open_gateway_world(tmp_path, tools={"dig": dig, "send_file": send_file}) as w:
        w.limits = replace(w.limits, edits=False, parts=parts)
        async with w.run_gateway():
            sending = '!tool send_file {"path": "report.txt"}'
            w.server.add_message(
                f"!say I look.\n!tool dig {{}}\n!then\n!say Found.\n{sending}\n!then\n!say So."
            )
            text = ["I look.", "Found.", "", "So."] if parts else ["", "I look.\n\nFound.\n\nSo."]
            await w.wait_for_texts(*text)
            await w.wait_until_idle()
    assert [message.file[0] for message in w.server.messages if message.file] == ["report.txt"]
    assert "edit" not in w.server.calls


@pytest.mark.req("gateways.final")
async def test_without_edits_a_steering_message_does_not_split_the_answer(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def dig(call: ToolDispatch) -> str:
        begun.set()
        await go_on.wait()
        return "sand"

    async with open_gateway_world(tmp_path, tools={"dig": dig}) as w:
        w.limits = replace(w.limits, edits=False)
        async with w.run_gateway() as gateway:
            w.server.add_message("!say I dig.\n!tool dig {}\n!then\n!say Done.")
            await begun.wait()
            w.server.add_message("!say Deeper.")
            await w.wait_until(
                lambda: len(w.server.acknowledged) == 2 and gateway.statistics()["waiting"] == 1
            )
            go_on.set()
            await w.wait_for_texts("I dig.\n\nDeeper.")
            await w.wait_until_idle()


@pytest.mark.req("gateways.typing")
async def test_while_an_agent_works_the_chat_shows_typing(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        w.limits = replace(w.limits, typing_every=0.02)
        async with w.run_gateway():
            assert w.daemon is not None
            w.server.add_message("!wait\n!say done")
            await w.wait_until(lambda: len(w.server.typing) >= 3)
            await w.daemon.model.until_waiting()
            w.daemon.model.release()
            await w.wait_for_texts("done")
            await w.wait_until_idle()


@pytest.mark.req("gateways.guest")
async def test_a_guest_speaks_once_and_its_answer_has_its_name(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("hello")
        await w.wait_for_texts("heard: hello")
        w.server.add_message("@twin !say I am here")
        await w.wait_for_texts("heard: hello", "**twin:** I am here")
        w.server.add_message("/guest twin !say again")
        await w.wait_for_texts("heard: hello", "**twin:** I am here", "**twin:** again")
        w.server.add_message("@ghost hi")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "heard: @ghost hi")
        await w.wait_until_idle()
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
async def test_a_message_that_is_too_early_or_too_late_to_steer_is_not_lost(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        for number in range(20):
            w.server.add_message(f"!say {number}")
        await w.wait_until(lambda: len(w.server.acknowledged) == 20)
        await w.wait_until_idle()
        assert await w.list_user_messages() == [f"!say {number}" for number in range(20)]


@pytest.mark.req("gateways.stop")
async def test_stop_right_after_a_message_stops_its_turn(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("!hang")
        w.server.add_message("/stop")
        await w.wait_for_texts("(stopped)")
        await w.wait_until_idle()


async def test_a_turn_that_fails_says_why(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("!status 400 no such model")
        await w.server.wait_until(lambda: w.server.texts_in())
        assert w.server.texts_in()[0].startswith("⚠️ ")
        assert "no such model" in w.server.texts_in()[0]
        w.server.add_message("!nothing")
        await w.server.wait_until(lambda: len(w.server.texts_in()) == 2)
        assert w.server.texts_in()[1] == "(no answer)"
        await w.wait_until_idle()


async def test_an_unknown_agent_is_an_error_in_the_chat(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway(agent="ghost", agents=()):
        w.server.add_message("hello")
        await w.server.wait_until(lambda: w.server.texts_in())
        assert w.server.texts_in()[0].startswith("⚠️ ")
        await w.wait_until_idle()


@pytest.mark.req("gateways.limits")
async def test_a_service_that_asks_to_wait_is_waited_for(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.inject_faults(
            "send", PigeonFault(429, seconds=0.05), PigeonFault(429, seconds=0.05)
        )
        w.server.inject_faults("edit", PigeonFault(429, seconds=0.05))
        w.server.add_message("!chunks 5 50")
        await w.wait_until_idle()
        assert len(w.server.texts_in()) == 1
        assert len(w.server.texts_in()[0].split()) == 5
        assert "sent again" not in w.server.texts_in()[0]


@pytest.mark.req("gateways.limits")
async def test_a_message_the_service_finds_too_long_is_split_smaller(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.limit = 200
        words = " ".join(f"word{number}" for number in range(100))
        w.server.add_message(f"!say {words}")
        await w.wait_until_idle()
        assert " ".join(w.server.texts_in()).split() == words.split()
        assert all(len(text) <= 200 for text in w.server.texts_in())


@pytest.mark.req("gateways.blocked")
async def test_blocking_the_bot_ends_that_chats_turn_only(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.blocked.add("7")
        w.server.add_message("!say So far.\n!hang", "7")
        w.server.add_message("hello", "8")
        await w.wait_for_texts("heard: hello", chat="8")
        await w.wait_until_idle()
        assert w.server.texts_in("7") == []
        assert w.daemon is not None
        await w.wait_until(lambda: w.daemon is not None and w.daemon.model.hangups == 1)


async def test_the_text_of_a_deleted_message_is_sent_in_a_new_one(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("!say So far.\n!wait\n!say The end.")
        await w.wait_for_texts("So far.")
        w.server.messages.clear()
        assert w.daemon is not None
        await w.daemon.model.until_waiting()
        w.daemon.model.release()
        await w.wait_for_texts("So far.The end.")
        await w.wait_until_idle()


@pytest.mark.req("gateways.files.in")
async def test_files_are_in_the_inbox_and_named_to_the_agent(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("look", files=[("../../shell.png", b"PNG"), ("notes.txt", b"sand")])
        await w.server.wait_until(
            lambda: w.server.texts_in() and "notes.txt" in "".join(w.server.texts_in())
        )
        await w.wait_until_idle()
        (message,) = await w.list_user_messages()
        text, _, listed = message.partition("\n\nFiles:\n")
        assert text == "look"
        first, second = (Path(line.removeprefix("- ")) for line in listed.splitlines())
        assert first.read_bytes() == b"PNG"
        assert second.read_bytes() == b"sand"
        assert first.name == "shell.png"
        assert first.is_relative_to(w.home / "files")


async def test_the_agent_is_told_of_a_file_that_could_not_be_fetched(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.inject_faults("files/f2", PigeonFault(404))
        w.server.add_message("", files=[("a.txt", b"a")])
        await w.wait_until_idle()
        (message,) = await w.list_user_messages()
        assert message == "See these files.\n\nFiles:\n- a.txt: could not be fetched"


@pytest.mark.req("gateways.files.out")
async def test_a_file_the_agent_sends_is_uploaded_once(tmp_path: Path) -> None:
    async def send_file(call: ToolDispatch) -> str:
        (call.cwd / "report.txt").write_text("sand")
        return "sent"

    async with open_gateway_world(tmp_path, tools={"send_file": send_file}) as w, w.run_gateway():
        w.server.add_message(script_tool_calls([("send_file", {"path": "report.txt"})]))
        await w.server.wait_until(lambda: "done" in w.server.texts_in())
        await w.wait_until_idle()
        (file,) = [message.file for message in w.server.messages if message.file]
        assert file == ("report.txt", b"sand")


@pytest.mark.req("gateways.files.out")
async def test_a_file_outside_the_conversations_directory_is_not_sent(tmp_path: Path) -> None:
    async def send_file(call: ToolDispatch) -> str:
        return "sent"

    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    async with open_gateway_world(tmp_path, tools={"send_file": send_file}) as w, w.run_gateway():
        w.server.add_message(script_tool_calls([("send_file", {"path": str(secret)})]))
        await w.server.wait_until(lambda: "done" in w.server.texts_in())
        await w.wait_until_idle()
        assert not [message for message in w.server.messages if message.file]
        assert any("is not a file under" in text for text in w.server.texts_in())


@pytest.mark.req("gateways.separation")
async def test_two_people_never_share_a_conversation(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("secret", "7")
        w.server.add_message("hello", "8")
        await w.wait_for_texts("heard: secret", chat="7")
        await w.wait_for_texts("heard: hello", chat="8")
        w.server.add_message("/search secret", "8")
        await w.wait_for_texts("heard: hello", "Nothing was found for “secret”.", chat="8")
        await w.wait_until_idle()
        assert w.daemon is not None
        requests = [json.dumps(request) for request in w.daemon.model.requests]
        assert not any("secret" in request and "hello" in request for request in requests)
