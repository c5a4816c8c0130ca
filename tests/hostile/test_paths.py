"""Paths in every field of every request, and in every setting of an agent.

FIELDS says for each text field what it may name. The first test fails for a new field until it is
added there; then the other tests try paths in it too.
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

    AGENT = "an agent: a name that could leave a directory is refused or unknown"
    HANDLE = "a conversation, by our handle: anything else is refused"
    DIRECTORY = "an existing directory: absolute, and not changed"
    PART = "a sender: part of a file's name, in letters and digits"
    WORDS = "nothing: it is sent, stored or compared"
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
# The settings of an agent in which paths are tried, with their shape. The settings of its servers
# name programs, addresses and directories on purpose.
TRIED_SETTINGS = {
    **dict.fromkeys(("description", "model", "prompt", "tool_choice"), "{}"),
    **dict.fromkeys(("tools", "skills", "approve"), "[{}]"),
    "mode": "{}",
    "permissions": '{{"allow": [{}]}}',
    **dict.fromkeys(("max_iterations", "thinking", "compact_tool_max_len", "mcps"), "{}"),
    "hooks": '{{"skill": {}}}',
}
SERVER_SETTINGS = {"name", "command", "args", "env", "url", "auth", "auto_restart", "idle_timeout"}
# Other fields that requests require.
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


def collect_messages(
    descriptor: Descriptor, messages: dict[str, Descriptor]
) -> dict[str, Descriptor]:
    """All messages that a request can contain, by name."""
    if descriptor.name not in messages:
        messages[descriptor.name] = descriptor
        for field in descriptor.fields:
            if field.message_type is not None:
                collect_messages(field.message_type, messages)
    return messages


def is_text(field: FieldDescriptor) -> bool:
    return field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def test_fields_has_every_text_field_of_every_request() -> None:
    messages = collect_messages(wire.ClientMessage.DESCRIPTOR, {})
    text_fields = {
        name: {field.name for field in descriptor.fields if is_text(field)}
        for name, descriptor in messages.items()
    }
    assert {name: set(fields) for name, fields in FIELDS.items()} == {
        name: fields for name, fields in text_fields.items() if fields
    }
    assert set(TRIED_SETTINGS) == set(AGENT_KEYS)
    assert set(SERVER_KEYS) == SERVER_SETTINGS


def list_paths(around: Path) -> list[str]:
    """Paths to files beside the home, relative to its directories and absolute."""
    absolute_paths = [
        str(around / "secret" / "key"),
        str(around / "secret"),
        str(around / "beside" / "key"),
    ]
    ups = ["../" * depth + "secret/key" for depth in range(1, 6)]
    return [*PATHS, *absolute_paths, *(f"file://{path}" for path in absolute_paths), *ups]


def can_leave_directory(path: str) -> bool:
    """Whether the path, joined to a directory, could lead out of it."""
    return any(character in path for character in "/\\\0") or path in (".", "..")


def make_requests(name: str, field: str, value: str) -> Iterator[wire.ClientMessage]:
    """Each request that has the field, with this value and valid other fields."""
    for route in ROUTES:
        route_field = wire.ClientMessage.DESCRIPTOR.fields_by_name[route]
        if route_field.message_type is None:
            if (name, field) == ("ClientMessage", route):
                yield wrap_request(route, value.encode())
            continue
        body = fill_message(route_field.message_type, name, field, value)
        if body is not None:
            yield wrap_request(route, body)


def wrap_request(route: str, body: Any) -> wire.ClientMessage:
    fields = {route: body}
    return wire.ClientMessage(**fields)


def fill_message(descriptor: Descriptor, name: str, field: str, value: str) -> Message | None:
    kind: Any = getattr(wire, descriptor.name)
    field_names = set(descriptor.fields_by_name)
    needed = {
        key: required
        for name_ in field_names & set(REQUIRED_FIELDS)
        for key, required in REQUIRED_FIELDS[name_].items()
    }
    if descriptor.name == name:
        message: Message = kind(**{**needed, field: value})
        return message
    if name == "MemoryEntry" and "entries" in field_names:
        entry_value: Any = [value] if field == "aliases" else value
        entry = {"name": "n", "kind": "note", field: entry_value}
        replacement: Message = kind(**{**needed, "entries": [wire.MemoryEntry(**entry)]})
        return replacement
    return None


async def request_answer(peer: RawPeer, request: wire.ClientMessage) -> wire.ServerMessage:
    peer.send(request)
    async with asyncio.timeout(30):
        while True:
            answer = await peer.expect()
            if answer.stream.WhichOneof("event") in (None, "end"):
                return answer


class PathAttempts:
    def __init__(self, attacked: AttackedDaemon) -> None:
        self._fired_at = attacked
        self.count = 0

    async def try_all(self) -> None:
        peer = await self._fired_at.peer()
        for name, fields in FIELDS.items():
            for field, meaning in fields.items():
                if meaning is not SETTINGS:
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

    def _check(
        self, meaning: FieldMeaning, path: str, answer: wire.ServerMessage, description: str
    ) -> None:
        assert b"canary" not in answer.SerializeToString(), description
        assert "internal error (" not in answer.error.message, (
            f"{description}: {answer.error.message}"
        )
        if meaning is HANDLE or (meaning is AGENT and can_leave_directory(path)):
            error = answer.error.code or (400 if answer.stream.end.error else 0)
            assert error in (400, 404), f"{description}: {answer}"
        if meaning is DIRECTORY and not (path.startswith("/") and os.path.isdir(path)):  # noqa: PTH112
            assert answer.error.code == 400, f"{description}: {answer}"


@pytest.mark.clock
async def test_no_field_leads_out_of_the_home(tmp_path: Path) -> None:
    async with attack_target(tmp_path) as attacked, attacked.ping_beside() as monitor:
        attempts = PathAttempts(attacked)
        await attempts.try_all()
        assert attempts.count > 2500
        monitor.check()
    check_home_layout(attacked.home)


def check_home_layout(home: Path) -> None:
    """Check that the home has only the expected directories and files."""
    for folder, endings in (("agents", {".toml"}), ("sessions", {".jsonl"})):
        for path in (home / folder).iterdir():
            assert path.is_file(), path
            assert path.suffix in endings, path
            assert not path.is_symlink(), path
    folders = {path.name for path in home.iterdir() if path.is_dir()}
    assert folders <= {"agents", "events", "index", "logs", "memory", "run", "sessions"}


@pytest.mark.parametrize("way", ["created", "edited"])
@pytest.mark.clock
async def test_no_setting_of_an_agent_leads_out_of_the_home(tmp_path: Path, way: str) -> None:
    """Sent by a client, or in an edited file; and then the agent gets a message."""
    async with (
        attack_target(tmp_path) as attacked,
        attacked.ping_beside() as monitor,
        attacked.client() as client,
    ):
        peer = await attacked.peer()
        for key, shape in TRIED_SETTINGS.items():
            for number, path in enumerate(list_paths(attacked.around)):
                text = shape.format(json.dumps(path))
                if way == "created":
                    config = f"{{{json.dumps(key)}: {text}}}"
                    update = wire.UpdateAgentMsg(name="twin", config=config, prompt="p")
                    answer = await request_answer(peer, wire.ClientMessage(update_agent=update))
                    assert answer.error.code in (0, 400), f"{key} = {path!r}: {answer}"
                elif number % 8 == 0:
                    lines = f"{key} = {text.replace(': ', ' = ')}\n"
                    file = attacked.home / "agents" / "twin.toml"
                    file.write_text(lines if key == "prompt" else f'prompt = "p"\n{lines}')
                    await client.reload()
                else:
                    continue
                if number % 8 == 0:
                    message = wire.SendMsg(agent="twin", content=f"/{path} hello", sender=key)
                    answer = await request_answer(peer, wire.ClientMessage(send=message))
                    assert b"canary" not in answer.SerializeToString(), f"{key} = {path!r}"
                    assert "internal error (" not in answer.error.message, f"{key} = {path!r}"
        await peer.close()
        monitor.check()
    check_home_layout(attacked.home)
