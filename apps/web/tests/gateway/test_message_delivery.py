"""Messages of devices reach the daemon with a key, and the session follows the daemon's log."""

import asyncio
import shutil
from collections.abc import Awaitable
from pathlib import Path

import msgspec
import pytest

from apps.web.tests.gateway.approval_daemon import open_approval_world
from apps.web.tests.gateway.device_client import (
    check_order,
    format_envelopes,
    list_event_tags,
    list_texts,
    list_turn_statuses,
)
from apps.web.tests.gateway.web_gateway_world import WebGatewayWorld, open_world
from crabtalk.daemon.events.feed import FeedLimits
from crabtalk.model import Tool
from crabtalk.runtime import Hook, ToolDispatch, ToolError
from crabtalk_web.gateway import WebFolder, WebGateway, WebGatewayError
from crabtalk_web.gateway.conversation_journal import ConversationJournal
from crabtalk_web.stream import Envelope, FileEvent, ServiceEvent, ToolCallEnd
from tests.daemon.in_process_daemon import collect_events, script_tool_calls, wait_until

BURST = " ".join(f"w{number}" for number in range(300))
# Errors with unusual prefixes, and outputs that look like errors.
ERRORS = ["the moon is not full", "nothing found", "Error 7", "", "ok"]
RESULTS = ["interrupted: is what the page says", "permission denied: in a log file", "bash failed:"]


class AnswerToolHook(Hook):
    """A tool that fails or succeeds with the given text."""

    def schema(self) -> list[Tool]:
        return [Tool("answer", "answers")]

    def dispatch(self, call: ToolDispatch) -> Awaitable[str] | None:
        return self._answer(call.arguments) if call.name == "answer" else None

    async def _answer(self, arguments: str) -> str:
        call_arguments = msgspec.json.decode(arguments, type=dict[str, str])
        if call_arguments["as"] == "error":
            raise ToolError(call_arguments["text"])
        return call_arguments["text"]


def list_journals(world: WebGatewayWorld) -> list[Path]:
    return sorted(WebFolder(world.daemon.home).journal_folder.glob("*.jsonl"))


def list_failures(envelopes: list[Envelope]) -> list[bool]:
    return [e.ev.is_error for e in envelopes if isinstance(e.ev, ToolCallEnd)]


@pytest.mark.req("gateway.delivery.busy")
async def test_a_message_of_a_killed_gateway_is_delivered_to_a_busy_daemon(
    tmp_path: Path,
) -> None:
    """The journal is that of a gateway that was killed just before it delivered the message."""
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!say before")
        await world.phone.wait_for_turns(session)
        await world.stop_gateway()
        others = [
            asyncio.ensure_future(
                collect_events(client.stream("crab", "!hang", sender=f"tg:{number}"))
            )
            for number in range(8)
        ]
        await world.daemon.model.until_asked(1 + len(others))
        await world.phone.send_text(session, "!say promptly")
        seq = (await world.phone.read_messages(session))[-1].seq
        key = f"web:{session.id}:test"
        inbound = {"seq": seq, "text": "!say promptly", "key": key}
        path = next(
            p for p in list_journals(world) if ConversationJournal.read_state(p).agent == "crab"
        )
        with path.open("ab") as file:
            for line in (
                {"type": "Read", "cursor": seq, "inbound": inbound},
                {"type": "Trying", "text": "!say promptly", "key": key},
            ):
                file.write(msgspec.json.encode(line) + b"\n")
        await world.start_gateway()
        envelopes = check_order(await world.phone.wait_for_turns(session, 2, patience=10))
        assert list_texts(envelopes) == ["before", "promptly"]
        assert list_texts(envelopes, "user") == []
        await world.phone.send_text(session, "!say and on")
        assert list_texts(await world.phone.wait_for_turns(session, 3, patience=10))[-1] == "and on"
        for other in others:
            other.cancel()
        await asyncio.wait(others)


@pytest.mark.req("gateway.delivery.busy")
async def test_turns_end_promptly_though_the_feed_loses_their_ends(
    tmp_path: Path,
) -> None:
    """The feed has room for a few events only, and the daemon is busy with others."""
    async with (
        open_world(tmp_path, feed_limits=FeedLimits(feed_events=4)) as world,
        world.daemon.client() as client,
    ):
        session = await world.phone.wait_for_session()
        others = [
            asyncio.ensure_future(
                collect_events(client.stream("crab", "!hang", sender=f"tg:{number}"))
            )
            for number in range(8)
        ]
        await world.daemon.model.until_asked(len(others))
        for number in range(3):
            await world.phone.send_text(session, f"!say {number} {BURST}")
            envelopes = check_order(
                await world.phone.wait_for_turns(session, number + 1, patience=12)
            )
        assert list_turn_statuses(envelopes) == ["completed"] * 3
        assert "".join(list_texts(envelopes)).count("w299") == 3
        assert list_texts(envelopes, "user") == []
        for other in others:
            other.cancel()
        await asyncio.wait(others)


@pytest.mark.req("gateway.delivery.failed")
async def test_a_call_that_failed_is_shown_as_failed_whatever_it_says(tmp_path: Path) -> None:
    script = [("answer", {"as": "error", "text": text}) for text in ERRORS]
    script += [("answer", {"as": "result", "text": text}) for text in RESULTS]
    expected = [True] * len(ERRORS) + [False] * len(RESULTS)
    async with (
        open_world(tmp_path, hooks={"answering": AnswerToolHook()}) as world,
        world.daemon.client() as client,
    ):
        session = await world.phone.wait_for_session()
        await collect_events(client.stream("crab", script_tool_calls(script)))
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert sorted(list_failures(envelopes)) == sorted(expected)
        await world.stop_gateway()
        await collect_events(client.stream("crab", script_tool_calls(script)))
        await world.start_gateway()
        envelopes = check_order(await world.phone.wait_for_turns(session, 2))
        assert list_failures(envelopes)[len(script) :] == expected, format_envelopes(envelopes)


@pytest.mark.req("gateway.delivery.failed")
async def test_a_file_of_a_call_that_failed_is_not_sent(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        (tmp_path / "work" / "note.txt").write_bytes(b"not for you")
        session = await world.phone.wait_for_session()
        await world.stop_gateway()
        # The daemon has no such tool, and says so.
        await collect_events(
            client.stream("crab", script_tool_calls([("send_file", {"path": "note.txt"})]))
        )
        await world.start_gateway()
        await world.phone.wait_for_turns(session)
        await world.phone.send_text(session, "!say after")
        envelopes = check_order(await world.phone.wait_for_turns(session, 2))
        assert list_failures(envelopes) == [True]
        assert not any(isinstance(e.ev, FileEvent) for e in envelopes)


@pytest.mark.req("gateway.delivery.once")
async def test_a_message_that_is_delivered_again_runs_once(tmp_path: Path) -> None:
    """The journal is an older one, as after a disk failure or from a backup."""
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!say before")
        await world.phone.wait_for_turns(session)
        await world.stop_gateway()
        backup = tmp_path / "backup"
        shutil.copytree(WebFolder(world.daemon.home).journal_folder, backup)
        await world.start_gateway()
        await world.phone.send_text(session, "!say one")
        await world.phone.send_text(session, script_tool_calls([("recall", {"query": "x"})]))
        seen = check_order(await world.phone.wait_for_turns(session, 3))
        await world.stop_gateway()
        shutil.rmtree(WebFolder(world.daemon.home).journal_folder)
        shutil.copytree(backup, WebFolder(world.daemon.home).journal_folder)
        await world.start_gateway()
        await world.phone.send_text(session, "!say after")
        envelopes = await world.phone.wait_for_envelopes(
            session, lambda envelopes: "after" in list_texts(envelopes)
        )
        texts = [m["text"] for m in world.daemon.read_messages() if m["role"] == "user"]
        assert len(texts) == len(set(texts)) == 4, texts
        assert list_texts(envelopes) == ["before", "one", "done", "after"], format_envelopes(
            envelopes
        )
        assert [e.id for e in seen] == [e.id for e in envelopes[: len(seen)]]
        assert list_texts(envelopes, "user") == []


@pytest.mark.req("gateway.delivery.once")
async def test_a_skill_message_is_not_sent_back_to_its_device(tmp_path: Path) -> None:
    skill = "---\nname: shout\ndescription: Shout.\n---\n!say loud"
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        folder = world.daemon.home / "skills" / "shout"
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(skill)
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "/shout now")
        await world.phone.wait_for_turns(session)
        await world.stop_gateway()
        await collect_events(client.stream("crab", "/shout then"))
        await world.start_gateway()
        envelopes = check_order(await world.phone.wait_for_turns(session, 2))
        assert list_texts(envelopes, "user") == ["/shout then"], format_envelopes(envelopes)


@pytest.mark.req("gateway.delivery.old_daemon")
async def test_a_daemon_without_records_is_refused_with_a_message(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as world:
        await world.stop_gateway()
        world.daemon.features = ["keys"]
        gateway = WebGateway(world.home, world.credentials, world.config)
        with pytest.raises(ExceptionGroup) as refused:
            await asyncio.wait_for(gateway.run(), 20)
    (error,) = refused.value.exceptions
    assert isinstance(error, WebGatewayError)
    assert str(error) == (
        "the daemon is too old for this gateway; upgrade crabtalk, and restart the daemon"
    )


def downgrade_journal(path: Path) -> None:
    """The journal in the format without positions in the log."""
    whole = msgspec.to_builtins(ConversationJournal.read_state(path).snapshot())
    for name in ("record", "log_id", "progress", "pending"):
        whole.pop(name, None)
    whole |= {"of_run": [], "unseen": []}
    path.write_bytes(msgspec.json.encode(whole) + b"\n")


@pytest.mark.req("gateway.delivery.migration")
async def test_a_journal_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!say one")
        await world.phone.wait_for_turns(session)
        await collect_events(client.stream("crab", script_tool_calls([("recall", {"query": "x"})])))
        await client.compact("crab")
        await collect_events(client.stream("crab", "!say two"))
        seen = check_order(await world.phone.wait_for_turns(session, 4))
        await world.stop_gateway()
        for path in list_journals(world):
            downgrade_journal(path)
        await collect_events(client.stream("crab", "!say three"))
        await world.start_gateway()
        await world.phone.send_text(session, "!say four")
        envelopes = check_order(await world.phone.wait_for_turns(session, 6))
        assert [e.id for e in seen] == [e.id for e in envelopes[: len(seen)]]
        assert list_texts(envelopes) == ["one", "done", "two", "three", "four"], format_envelopes(
            envelopes
        )
        assert sum(isinstance(e.ev, ServiceEvent) for e in envelopes) == 1
        assert list_texts(envelopes, "user")[-1] == "!say three"


@pytest.mark.req("gateway.delivery.migration")
async def test_an_open_turn_of_an_earlier_version_is_completed(tmp_path: Path) -> None:
    script = "\n!then\n".join(
        [
            '!say to begin with\n!tool bash {"command": "echo a"}',
            '!say then\n!tool bash {"command": "while ! test -e go; do sleep 0.02; done"}',
            "!say at last",
        ]
    )
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        turn = asyncio.ensure_future(
            collect_events(client.stream("crab", script, cwd=str(tmp_path / "work")))
        )
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: list_event_tags(envelopes).count("tool-call-start") == 2
        )
        await world.stop_gateway()
        for path in list_journals(world):
            downgrade_journal(path)
        await world.start_gateway()
        (tmp_path / "work" / "go").touch()
        await turn
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_texts(envelopes) == ["to begin with", "then", "at last"], format_envelopes(
            envelopes
        )
        assert list_event_tags(envelopes).count("tool-call-start") == 2
        assert len(list_texts(envelopes, "user")) == 1
        assert list_turn_statuses(envelopes) == ["completed"]


@pytest.mark.req("gateway.delivery.live")
async def test_the_text_in_progress_is_seen_by_the_next_process(tmp_path: Path) -> None:
    """The message in progress is not in the log yet: it comes from the run itself."""
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!say so far\n!wait\n!say  and on")
        await world.daemon.model.until_asked(1)
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: "turn-start" in list_event_tags(envelopes)
        )
        await world.stop_gateway()
        gateway = await world.start_gateway()
        live = gateway._conversations["crab"].live_text
        await wait_until(lambda: live._text == "so far")
        await world.release_model()
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert "".join(list_texts(envelopes)).replace(" ", "") == "sofarandon", format_envelopes(
            envelopes
        )
