"""A home with corrupt files of every kind: the daemon starts, reports what it cannot use, and
answers all requests about the rest."""

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from crabtalk.client import Client, ServerError
from crabtalk.memory.crmem import encode_memory as encode_memory
from crabtalk.model import Message, ToolCall
from crabtalk.storage import Pair, make_log_name
from crabtalk.storage.records import (
    EventRecord,
    MarkerRecord,
    MessageRecord,
    MetaRecord,
    Record,
    encode_records,
)
from tests.daemon.in_process_daemon import expect_error_code, run_daemon
from tests.hostile.attacked_daemon import AGENTS, AttackedDaemon, prepare_home
from tests.hostile.corruption import corrupt_bytes, corrupt_json, corrupt_lines
from tests.memory.memory_samples import ENTRIES
from tests.model_server import model_server

log = logging.getLogger(__name__)
pytestmark = pytest.mark.one_loop

AT = "2026-01-31T12:00:00Z"
AGENT = """description = "d"
model = "scripted"
prompt = "You are odd."
max_iterations = 3
tools = ["bash"]
skills = ["tides"]
[hooks.bash]
deny = ["rm"]
timeout = 3
[hooks.memory]
recall_limit = 2
[[mcps]]
name = "x"
url = "http://127.0.0.1:9/"
auto_restart = false
"""
SKILL = """---
name: tides
description: "When the tide comes"
license: MIT
metadata:
  author: a-person
  version: "1.0"
allowed-tools: bash read
---

# Tides

They come and go.
"""
SUBSCRIPTIONS = """[[subscription]]
id = 1
source = "x"
target_agent = "crab"
once = true

[[subscription]]
id = 2
source = "y"
target_agent = "owl"
"""


def make_records(pair: Pair) -> list[bytes]:
    """The records of a conversation, of every kind."""
    call = ToolCall("call_1", "bash", '{"command": "ls"}')
    records: list[Record] = [
        MetaRecord(agent=pair.agent, created_by=pair.sender, created_at=AT, title="t"),
        MessageRecord(0, AT, Message("user", "high tide")),
        EventRecord("model", AT, "run", {"usage": {"total": 3}}),
        MessageRecord(1, AT, Message("assistant", "let me look", tool_calls=(call,))),
        MessageRecord(2, AT, Message("tool", "shells", call_id="call_1")),
        MarkerRecord("archive", AT, "Tides.", "They spoke of tides.", 3),
        MessageRecord(3, AT, Message("user", "and now?")),
        MessageRecord(4, AT, Message("assistant", "it is low", agent="owl")),
        MetaRecord(message_count=5, updated_at=AT, approved=("bash",)),
    ]
    return [encode_records([record]) for record in records]


def corrupt_log(rng: random.Random, pair: Pair) -> bytes:
    lines = make_records(pair)
    for _ in range(rng.randrange(1, 4)):
        index = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                lines[index] = corrupt_bytes(rng, lines[index])
            case 1:
                lines.insert(index, lines[rng.randrange(len(lines))])
            case _:
                lines[index] = corrupt_json(rng, json.loads(make_records(pair)[index % 9])) + b"\n"
    return b"".join(lines)


def fill_home(home: Path, seed: int, count: int) -> list[Pair]:
    """Fill a home with `count` corrupt logs, and other corrupt files."""
    rng = random.Random(seed)
    for folder in ("sessions", "memory", "skills", "events"):
        (home / folder).mkdir()
    pairs = [Pair(rng.choice(AGENTS), f"s{number}") for number in range(count)]
    for number, pair in enumerate(pairs):
        name = make_log_name(pair) if number % 4 else f"stray-{number}"
        (home / "sessions" / f"{name}.jsonl").write_bytes(corrupt_log(rng, pair))
    for number in range(count // 4):
        (home / "agents" / f"odd{number}.toml").write_bytes(corrupt_lines(rng, AGENT))
        (home / "skills" / f"s{number}").mkdir()
        skill = SKILL.replace("name: tides", f"name: s{number}")
        (home / "skills" / f"s{number}" / "SKILL.md").write_bytes(corrupt_lines(rng, skill))
    for agent in AGENTS:
        (home / "memory" / f"{agent}.crmem").write_bytes(
            corrupt_bytes(rng, encode_memory(ENTRIES, 9))
        )
        (home / "memory" / f"{agent}.crmem.journal").write_bytes(rng.randbytes(300))
    (home / "events" / "subscriptions.toml").write_bytes(corrupt_lines(rng, SUBSCRIPTIONS))
    add_odd_files(home)
    return pairs


def add_odd_files(home: Path) -> None:
    """Add directories and links in place of files, and files with impossible names."""
    (home / "sessions" / "folder.jsonl").mkdir()
    (home / "sessions" / "-.jsonl").write_bytes(b"")
    (home / "sessions" / "a\nb\x1b[31m.jsonl").write_bytes(b"{}\n")
    (home / "sessions" / "leaf.jsonl").symlink_to(home.parent / "secret" / "key.jsonl")
    (home / "agents" / "folder.toml").mkdir()
    (home / "agents" / "..toml").write_bytes(b'prompt = "p"')
    (home / "agents" / "a\nb.toml").write_bytes(b'prompt = "p"')
    (home / "memory" / "twin.crmem").unlink()
    (home / "memory" / "twin.crmem").mkdir()
    (home / "skills" / "circle").symlink_to(home / "skills")


class RequestSurvey:
    """Sends all kinds of requests. Refusals must be sentences, not internal errors."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.answers: Counter[str] = Counter()

    async def ask(self, name: str, request: Awaitable[Any]) -> Any:
        answer, refusal = None, None
        try:
            async with asyncio.timeout(30):
                answer = await request
        except ServerError as error:
            refusal = error
        if refusal is not None:
            assert "internal error (" not in refusal.message, f"{name}: {refusal.message}"
        self.answers[name if refusal is None else f"{name} {refusal.code}"] += 1
        return answer

    async def ask_everything(self, pairs: list[Pair]) -> None:
        client = self._client
        for name in ("get_stats", "list_agents", "list_skills", "list_subscriptions", "list_mcps"):
            await self.ask(name, getattr(client, name)())
        listed = await self.ask("list", client.list_conversations())
        for row in listed.conversations:
            await self.ask("history", client.get_conversation_history(row.file_path))
        for pair in pairs:
            agent, sender = pair
            await self.ask("page", client.list_messages(agent, sender=sender))
            await self.ask("archives", client.list_archives(agent, sender=sender))
        for pair in pairs[::10]:
            turn = client.send(pair.agent, "!say so", sender=pair.sender)
            await self.ask("turn", turn)
            await self.ask("page", client.list_messages(pair.agent, sender=pair.sender))
        for agent in AGENTS:
            await self.ask("memory", client.list_memory(agent))
            await self.ask("recall", client.search_memory(agent, "tide"))
        await self.ask("search", client.search_sessions("tide"))
        await self.ask("reload", client.reload())


async def check_corrupt_home(tmp_path: Path, seed: int, count: int) -> None:
    async with model_server(is_recording=False) as model:
        prepare_home(tmp_path, model)
        pairs = fill_home(tmp_path / "home", seed, count)
        child = AttackedDaemon(tmp_path)
        try:
            await child.start()
            async with child.ping_beside() as monitor, child.client() as client:
                survey = RequestSurvey(client)
                await survey.ask_everything(pairs)
        finally:
            await child.kill()
        log.info("seed %d: %s, %s", seed, monitor, survey.answers)
        assert survey.answers["history"] > count / 2, "most conversations can still be read"
        assert survey.answers["turn"] > count / 20, "and continued"
        assert "Traceback" not in child.stderr_text, child.stderr_text[-6000:]
        monitor.check()


@pytest.mark.clock
async def test_a_daemon_works_with_corrupt_files_in_its_home(tmp_path: Path) -> None:
    await check_corrupt_home(tmp_path, 1, 200)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 22))
@pytest.mark.clock
async def test_a_daemon_works_with_any_corrupt_home(tmp_path: Path, seed: int) -> None:
    await check_corrupt_home(tmp_path, seed, 400)


async def test_a_copy_of_a_log_is_not_a_conversation(tmp_path: Path) -> None:
    """Deleting a copy must not delete the conversation itself."""
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        (path,) = daemon.log_paths
        for name in ("backup", f"{path.stem}-7", "another-name"):
            path.with_name(f"{name}.jsonl").write_bytes(path.read_bytes())
            for request in (client.get_conversation_history, client.delete_conversation):
                assert await expect_error_code(request(name)) == 404
        await client.get_conversation_history(path.stem)
        assert path.exists()
