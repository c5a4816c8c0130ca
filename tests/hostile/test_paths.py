"""Paths where none belong: in every field of every request, and in every setting of an agent.

A field that is new on the wire has no line here, and the first test says so: whoever adds one says
what it may name, and it is tried with the others.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from crabtalk.protocol import ROUTES, ReplyShape, wire
from crabtalk.storage.agent import AGENT_KEYS, SERVER_KEYS
from tests.hostile.attacked_daemon import AttackedDaemon, attack_target
from tests.hostile.hostile_frames import PATHS
from tests.scripted_server import RawPeer

pytestmark = pytest.mark.one_loop


class FieldMeaning(Enum):
    """What a field may name."""

    AGENT = "an agent: what could leave a directory is refused, or nobody's name"
    HANDLE = "a conversation, by a handle of ours: anything else is refused"
    DIRECTORY = "a directory that is there: absolute, and nothing is done to it"
    PART = "somebody: part of a file's name, in letters and digits"
    WORDS = "nothing: it is said, kept or compared"
    SETTINGS = "settings as JSON, each with a line of its own below"


AGENT, HANDLE, DIRECTORY, PART, WORDS, SETTINGS = FieldMeaning
FIELDS = {
    "AttachMsg": {"agent": AGENT, "sender": PART, "run_id": WORDS, "key": WORDS},
    "ClientMessage": {"extension": WORDS},
    "CompactMsg": {"agent": AGENT, "sender": PART},
    "CreateAgentMsg": {"name": AGENT, "config": SETTINGS, "prompt": WORDS},
    "DeleteAgentMsg": {"name": AGENT},
    "DeleteConversationMsg": {"file_path": HANDLE},
    "DeleteMcpMsg": {"name": WORDS, "agent": AGENT},
    "ExplainAgentMsg": {"agent": AGENT, "sender": PART, "mode": WORDS},
    "GetAgentMsg": {"name": AGENT},
    "GetConversationHistoryMsg": {"file_path": HANDLE},
    "HelloMsg": {"client": WORDS, "token": WORDS},
    "KillMsg": {"agent": AGENT, "sender": PART, "run_id": WORDS, "key": WORDS},
    "ListActiveConversationsMsg": {"agent": WORDS, "sender": WORDS},
    "ListArchivesMsg": {"agent": AGENT, "sender": PART},
    "ListConversationsMsg": {"agent": WORDS, "sender": WORDS},
    "ListMcpsMsg": {"agent": AGENT},
    "ListMemoryMsg": {"agent": AGENT, "sender": PART, "name": WORDS},
    "ListMessagesMsg": {"agent": AGENT, "sender": PART},
    "ListRecordsMsg": {"agent": AGENT, "sender": PART, "log_id": WORDS},
    "MemoryEntry": {"name": WORDS, "kind": WORDS, "content": WORDS, "aliases": WORDS},
    "PublishEventMsg": {"source": PART, "payload": WORDS},
    "RenameAgentMsg": {"old_name": AGENT, "new_name": AGENT},
    "ReplaceMemoryMsg": {"agent": AGENT, "sender": PART},
    "ReplyToAsk": {"agent": AGENT, "sender": PART, "content": WORDS, "ask_id": WORDS},
    "SearchMemoryMsg": {"agent": AGENT, "query": WORDS, "sender": PART},
    "SearchSessionsMsg": dict.fromkeys(("query", "agent", "sender", "since", "until"), WORDS),
    "SendMsg": {
        "agent": AGENT,
        "content": WORDS,
        "sender": PART,
        "cwd": DIRECTORY,
        "guest": AGENT,
        "tool_choice": WORDS,
        "key": WORDS,
        "mode": WORDS,
        "origin": PART,
    },
    "SetActiveModelMsg": {"model": WORDS},
    "SetModeMsg": {"agent": AGENT, "sender": PART, "mode": WORDS},
    "SetTitleMsg": {"agent": AGENT, "sender": PART, "title": WORDS},
    "SteerSessionMsg": {"agent": AGENT, "sender": PART, "content": WORDS, "key": WORDS},
    "StreamMsg": {
        "agent": AGENT,
        "content": WORDS,
        "sender": PART,
        "cwd": DIRECTORY,
        "guest": AGENT,
        "tool_choice": WORDS,
        "key": WORDS,
        "mode": WORDS,
        "origin": PART,
    },
    "SubscribeEventMsg": {"source": PART, "target_agent": AGENT, "sender": PART},
    "SubscribeEvents": {"agent": WORDS, "sender": WORDS},
    "UpdateAgentMsg": {"name": AGENT, "config": SETTINGS, "prompt": WORDS},
    "UpsertMcpMsg": {"config": SETTINGS, "agent": AGENT},
}
# Of an agent's settings and its servers': whether a path in them is tried here. The others are what
# a person wants done, on the machine that is theirs: programs, addresses, directories.
TRIED_SETTINGS = {
    **dict.fromkeys(("description", "model", "prompt", "tool_choice"), "{}"),
    **dict.fromkeys(("tools", "skills", "approve"), "[{}]"),
    "mode": "{}",
    "permissions": '{{"allow": [{}]}}',
    **dict.fromkeys(("max_iterations", "thinking", "compact_tool_max_len", "mcps"), "{}"),
    "hooks": '{{"skill": {}}}',
}
SERVER_SETTINGS = {"name", "command", "args", "env", "url", "auth", "auto_restart", "idle_timeout"}
# What a request needs beside the field that is tried.
REQUIRED_FIELDS: dict[str, dict[str, Any]] = {
    "agent": {"agent": "crab"},
    "content": {"content": "hello"},
    "name": {"name": "twin"},
    "old_name": {"old_name": "twin"},
    "new_name": {"new_name": "other"},
    "target_agent": {"target_agent": "owl"},
    "source": {"source": "x"},
    "query": {"query": "hello"},
    "prompt": {"prompt": "p"},
    "title": {"title": "t"},
    "entries": {"entries": [wire.MemoryEntry(name="n", kind="note", content="c")]},
}


def collect_messages(descriptor: Descriptor, found: dict[str, Descriptor]) -> dict[str, Descriptor]:
    """All that a request can hold, by name."""
    if descriptor.name not in found:
        found[descriptor.name] = descriptor
        for field in descriptor.fields:
            if field.message_type is not None:
                collect_messages(field.message_type, found)
    return found


def is_text(field: FieldDescriptor) -> bool:
    return field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def test_every_text_that_can_be_sent_has_a_line_that_says_what_it_may_name() -> None:
    there = collect_messages(wire.ClientMessage.DESCRIPTOR, {})
    wanted = {
        name: {field.name for field in descriptor.fields if is_text(field)}
        for name, descriptor in there.items()
    }
    assert {name: set(fields) for name, fields in FIELDS.items()} == {
        name: fields for name, fields in wanted.items() if fields
    }
    assert set(TRIED_SETTINGS) == set(AGENT_KEYS)
    assert set(SERVER_KEYS) == SERVER_SETTINGS


def list_paths(around: Path) -> list[str]:
    """Ways to what lies beside the home, from its directories and from the root."""
    there = [str(around / "secret" / "key"), str(around / "secret"), str(around / "beside" / "key")]
    ups = ["../" * depth + "secret/key" for depth in range(1, 6)]
    return [*PATHS, *there, *(f"file://{path}" for path in there), *ups]


def can_leave_directory(path: str) -> bool:
    """Whether it could, joined to a directory, lead out of it."""
    return any(character in path for character in "/\\\0") or path in (".", "..")


def make_requests(name: str, field: str, value: str) -> Iterator[wire.ClientMessage]:
    """Each request that has the field, with that in it and all else in order."""
    for route in ROUTES:
        place = wire.ClientMessage.DESCRIPTOR.fields_by_name[route]
        if place.message_type is None:
            if (name, field) == ("ClientMessage", route):
                yield wrap_request(route, value.encode())
            continue
        given = fill_message(place.message_type, name, field, value)
        if given is not None:
            yield wrap_request(route, given)


def wrap_request(route: str, given: Any) -> wire.ClientMessage:
    fields = {route: given}
    return wire.ClientMessage(**fields)


def fill_message(descriptor: Descriptor, name: str, field: str, value: str) -> Message | None:
    kind: Any = getattr(wire, descriptor.name)
    there = set(descriptor.fields_by_name)
    needed = {
        key: given
        for each in there & set(REQUIRED_FIELDS)
        for key, given in REQUIRED_FIELDS[each].items()
    }
    if descriptor.name == name:
        message: Message = kind(**{**needed, field: value})
        return message
    if name == "MemoryEntry" and "entries" in there:
        given: Any = [value] if field == "aliases" else value
        entry = {"name": "n", "kind": "note", field: given}
        found: Message = kind(**{**needed, "entries": [wire.MemoryEntry(**entry)]})
        return found
    return None


async def request_answer(peer: RawPeer, request: wire.ClientMessage) -> wire.ServerMessage:
    peer.send(request)
    async with asyncio.timeout(30):
        while True:
            answer = await peer.expect()
            if answer.stream.WhichOneof("event") in (None, "end"):
                return answer


class PathAttempts:
    def __init__(self, fired_at: AttackedDaemon) -> None:
        self._fired_at = fired_at
        self.count = 0

    async def try_all(self) -> None:
        peer = await self._fired_at.peer()
        for name, fields in FIELDS.items():
            for field, may in fields.items():
                if may is not SETTINGS:
                    for path in list_paths(self._fired_at.around):
                        await self._try(peer, name, field, path)
        await peer.close()

    async def _try(self, peer: RawPeer, name: str, field: str, path: str) -> None:
        for request in make_requests(name, field, path):
            self.count += 1
            route = request.WhichOneof("msg")
            assert route is not None
            if ROUTES[route].shape is ReplyShape.FEED:
                await self._start_feed(request)
                continue
            answer = await request_answer(peer, request)
            self._check(FIELDS[name][field], path, answer, f"{name}.{field} = {path!r}")

    async def _start_feed(self, request: wire.ClientMessage) -> None:
        peer = await self._fired_at.peer()
        peer.send(request)
        await peer.writer.drain()
        await peer.close()

    def _check(self, may: FieldMeaning, path: str, answer: wire.ServerMessage, told: str) -> None:
        assert b"canary" not in answer.SerializeToString(), told
        assert "internal error (" not in answer.error.message, f"{told}: {answer.error.message}"
        if may is HANDLE or (may is AGENT and can_leave_directory(path)):
            error = answer.error.code or (400 if answer.stream.end.error else 0)
            assert error in (400, 404), f"{told}: {answer}"
        if may is DIRECTORY and not (path.startswith("/") and os.path.isdir(path)):  # noqa: PTH112
            assert answer.error.code == 400, f"{told}: {answer}"


@pytest.mark.clock
async def test_no_field_leads_out_of_the_home(tmp_path: Path) -> None:
    async with attack_target(tmp_path) as fired_at, fired_at.ping_beside() as watch:
        trying = PathAttempts(fired_at)
        await trying.try_all()
        assert trying.count > 2500
        watch.check()
    check_home_layout(fired_at.home)


def check_home_layout(home: Path) -> None:
    """What there is now is where such things are, and as they are called."""
    for folder, endings in (("agents", {".toml"}), ("sessions", {".jsonl"})):
        for path in (home / folder).iterdir():
            assert path.is_file(), path
            assert path.suffix in endings, path
            assert not path.is_symlink(), path
    folders = {path.name for path in home.iterdir() if path.is_dir()}
    assert folders <= {"agents", "events", "index", "logs", "memory", "run", "sessions"}


@pytest.mark.parametrize("way", ["created", "edited"])
@pytest.mark.clock
async def test_no_setting_of_an_agent_leads_there_either(tmp_path: Path, way: str) -> None:
    """Sent by a client, or in a file that somebody hands on; and the agent is talked to."""
    async with (
        attack_target(tmp_path) as fired_at,
        fired_at.ping_beside() as watch,
        fired_at.client() as client,
    ):
        peer = await fired_at.peer()
        for key, shape in TRIED_SETTINGS.items():
            for number, path in enumerate(list_paths(fired_at.around)):
                text = shape.format(json.dumps(path))
                if way == "created":
                    config = f"{{{json.dumps(key)}: {text}}}"
                    given = wire.UpdateAgentMsg(name="twin", config=config, prompt="p")
                    answer = await request_answer(peer, wire.ClientMessage(update_agent=given))
                    assert answer.error.code in (0, 400), f"{key} = {path!r}: {answer}"
                elif number % 8 == 0:
                    lines = f"{key} = {text.replace(': ', ' = ')}\n"
                    file = fired_at.home / "agents" / "twin.toml"
                    file.write_text(lines if key == "prompt" else f'prompt = "p"\n{lines}')
                    await client.reload()
                else:
                    continue
                if number % 8 == 0:
                    said = wire.SendMsg(agent="twin", content=f"/{path} hello", sender=key)
                    answer = await request_answer(peer, wire.ClientMessage(send=said))
                    assert b"canary" not in answer.SerializeToString(), f"{key} = {path!r}"
                    assert "internal error (" not in answer.error.message, f"{key} = {path!r}"
        await peer.close()
        watch.check()
    check_home_layout(fired_at.home)
