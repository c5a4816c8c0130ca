"""Kills the gateway and the daemon with -9 while messages come from a phone and a terminal, which
repeat unanswered ones. Compares what the phone shows with the daemon's log."""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path

from apps.web.tests.gateway.device_client import (
    DeviceClient,
    DeviceSession,
    check_order,
    format_envelopes,
    list_texts,
    open_device,
)
from apps.web.tests.gateway.killable_process import build_gateway_process
from apps.web.tests.gateway.web_gateway_world import pair_with_device
from crabtalk.client import connect
from crabtalk.protocol import wire
from crabtalk_web.gateway import WebFolder
from crabtalk_web.gateway.errors import DAEMON_AWAY_ERRORS
from crabtalk_web.relay import RelayConfig, RelayServer
from crabtalk_web.stream import Envelope, FileEvent, ToolCallEnd, ToolCallStart, TurnEnd, TurnStart
from tests.crash.launched_daemon import prepare_home
from tests.daemon.crabtalkd_process import CrabtalkdProcess
from tests.model_server import model_server

AGENTS = ("crab", "owl")
ROUND = 60.0
SETTLE = 120.0


@dataclass
class DeliveryCrashReport:
    kills: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    messages: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    failed_calls: int = 0
    envelopes: int = 0
    took: float = 0.0

    def __str__(self) -> str:
        return (
            f"killed {dict(self.kills)} in {self.took:.0f} s: {self.messages} messages,"
            f" {self.retries} sent again; runs {dict(self.runs)};"
            f" {self.failed_calls} failed calls; {self.envelopes} envelopes"
        )


class DeliveryCrashRun:
    def __init__(self, path: Path, seed: str) -> None:
        self._path = path
        self._home = path / "home"
        self._random = random.Random(seed)
        self._phone_texts: dict[str, list[str]] = {agent: [] for agent in AGENTS}  # from the phone
        self._terminal_texts: dict[str, list[str]] = {
            agent: [] for agent in AGENTS
        }  # from the terminal
        self._number = 0
        self.report = DeliveryCrashReport()

    async def run(self, kills: int) -> DeliveryCrashReport:
        begun = time.monotonic()
        async with AsyncExitStack() as stack:
            await self._set_up(stack)
            while self.report.kills.total() < kills:
                async with asyncio.timeout(ROUND):
                    await self._round()
            for agent in AGENTS:
                await self._check(agent)
        self.report.took = time.monotonic() - begun
        return self.report

    async def _set_up(self, stack: AsyncExitStack) -> None:
        model = await stack.enter_async_context(model_server())
        config = RelayConfig(self._path / "relay", port=0, durability="os")
        relay = await stack.enter_async_context(RelayServer(config))
        self._phone: DeviceClient = await stack.enter_async_context(open_device(relay.url))
        prepare_home(self._home, model, durability="os")
        credentials = await pair_with_device(self._phone, relay.url)
        WebFolder(self._home).prepare()
        credentials.save(WebFolder(self._home).credentials_file)
        work = self._path / "work"
        work.mkdir()
        (work / "note.txt").write_text("a note")
        (self._home / "config").mkdir(exist_ok=True)
        (self._home / "config" / "web.toml").write_text(f'cwd = "{work}"\n')
        self._daemon = CrabtalkdProcess(self._home)
        stack.push_async_callback(self._daemon.kill)
        await self._daemon.start()
        self._gateway = build_gateway_process(self._home, self._path / "gateway.log")
        stack.push_async_callback(self._gateway.kill)
        await self._gateway.start()
        self._sessions: dict[str, DeviceSession] = {
            agent: await self._phone.wait_for_session(agent) for agent in AGENTS
        }

    async def _round(self) -> None:
        victims = self._random.choice([("gateway",), ("daemon",), ("gateway", "daemon")])
        pause = self._random.uniform(0, 0.5)
        # Some are killed again during startup, some after they have caught up.
        rest = self._random.choice([self._random.uniform(0, 0.6), self._random.uniform(1, 2.5)])
        plans = {agent: self._plan() for agent in AGENTS}
        async with asyncio.TaskGroup() as group:
            for agent, (text, is_typed) in plans.items():
                group.create_task(self._send(agent, text, is_typed=is_typed))
            await asyncio.sleep(pause)
            for victim in victims:
                await (self._gateway if victim == "gateway" else self._daemon).kill()
                self.report.kills[victim] += 1
            for victim in victims:
                await (self._gateway if victim == "gateway" else self._daemon).start()
        await asyncio.sleep(rest)

    def _plan(self) -> tuple[str, bool]:
        self._number += 1
        return build_script(self._number, self._random), self._random.random() < 0.5

    async def _send(self, agent: str, text: str, *, is_typed: bool) -> None:
        if not is_typed:
            self._phone_texts[agent].append(text)
            await self._phone.send_text(self._sessions[agent], text)
            return
        self._terminal_texts[agent].append(text)
        while True:
            try:
                async with connect(home=self._home) as client:
                    stream = client.stream(agent, text, key=f"terminal:{text}"[:128])
                    async with aclosing(stream) as events:
                        async for event in events:
                            if isinstance(event, wire.StreamEnd):
                                return
            except DAEMON_AWAY_ERRORS:
                self.report.retries += 1
                await asyncio.sleep(0.05)

    async def _check(self, agent: str) -> None:
        said, typed = self._phone_texts[agent], self._terminal_texts[agent]
        records: list[wire.ConversationRecord] = []
        envelopes: list[Envelope] = []
        deadline = time.monotonic() + SETTLE
        is_settled = False
        while not is_settled and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            records = await self._records(agent)
            envelopes = await self._phone.read_envelopes(self._sessions[agent])
            is_settled = is_delivered(records, envelopes, [*said, *typed], typed)
        assert is_settled, format_envelopes(envelopes[-40:])
        check_order(envelopes)
        messages = [r.message for r in records if r.WhichOneof("record") == "message"]
        users = Counter(m.content for m in messages if m.role == "user")
        assert users == Counter([*said, *typed]), "the log has each message once"
        assert Counter(list_texts(envelopes, "user")) == Counter(typed), "and the phone those typed"
        compare_answers(messages, envelopes)
        self.report.failed_calls += compare_calls(messages, envelopes)
        assert not any(isinstance(e.ev, FileEvent) for e in envelopes), "no send_file succeeded"
        ends = [r.run_end for r in records if r.WhichOneof("record") == "run_end"]
        completed = {end.run_id for end in ends if end.stop_reason == wire.STOP_REASON_COMPLETED}
        runs = {m.run_id for m in messages}
        self.report.runs["completed"] += len(completed)
        self.report.runs["cut off"] += len(runs - completed)
        self.report.messages += len(said) + len(typed)
        self.report.envelopes += len(envelopes)

    async def _records(self, agent: str) -> list[wire.ConversationRecord]:
        found: list[wire.ConversationRecord] = []
        position, has_more = 0, True
        async with connect(home=self._home) as client:
            while has_more:
                page = await client.list_records(agent, position=position, limit=500)
                found += page.records
                position, has_more = page.next_position, page.has_more
        return found


def build_script(number: int, source: random.Random) -> str:
    """A turn: some with a call that succeeds, some with one that fails, because the daemon has no
    such tool."""
    kind = source.random()
    if kind < 0.3:
        return f'!say look {number}\n!tool recall {{"query": "x"}}\n!then\n!say answer {number}'
    if kind < 0.6:
        return f'!tool send_file {{"path": "note.txt"}}\n!then\n!say answer {number}'
    if kind < 0.8:
        return f"!think about {number}\n!say answer {number}"
    return f"!say answer {number}"


def is_delivered(
    records: Sequence[wire.ConversationRecord],
    envelopes: Sequence[Envelope],
    expected: Sequence[str],
    typed: Sequence[str],
) -> bool:
    """Whether the log has every message, and the phone every answer in the log."""
    messages = [r.message for r in records if r.WhichOneof("record") == "message"]
    opened = sum(isinstance(e.ev, TurnStart) for e in envelopes)
    closed = sum(isinstance(e.ev, TurnEnd) for e in envelopes)
    shown_texts = set(list_texts(list(envelopes)))
    answers = {m.content for m in messages if is_answer(m.content)}
    return (
        {m.content for m in messages if m.role == "user"} >= set(expected)
        and set(list_texts(list(envelopes), "user")) >= set(typed)
        and answers <= shown_texts
        and opened == closed
    )


def is_answer(text: str) -> bool:
    """A complete answer; of one that was interrupted a part may be shown."""
    return re.fullmatch(r"answer \d+", text) is not None


def compare_answers(
    messages: Sequence[wire.ConversationMessage], envelopes: Sequence[Envelope]
) -> None:
    """Each text in the log is shown once and in order. Text that was being streamed when the daemon
    was killed may be shown although it is not in the log."""
    stored = [m.content for m in messages if m.role == "assistant" and is_answer(m.content)]
    shown_texts = [text for text in list_texts(list(envelopes)) if is_answer(text)]
    assert max(Counter(shown_texts).values(), default=0) <= 1, "nothing is shown twice"
    assert [text for text in shown_texts if text in set(stored)] == stored


def compare_calls(
    messages: Sequence[wire.ConversationMessage], envelopes: Sequence[Envelope]
) -> int:
    """Each call in the log is shown once, and as failed if it failed. Returns the number of failed
    ones."""
    results = {(m.run_id, m.call_id): m.is_error for m in messages if m.role == "tool"}
    stored = [
        (call.name, results.get((m.run_id, call.id))) for m in messages for call in m.tool_calls
    ]
    ends = {(e.turn, e.ev.call): e.ev for e in envelopes if isinstance(e.ev, ToolCallEnd)}
    shown_texts = [
        (e.ev.name.replace("-", "_"), ends[(e.turn, e.ev.call)].is_error)
        for e in envelopes
        if isinstance(e.ev, ToolCallStart)
    ]
    assert [name for name, _ in shown_texts] == [name for name, _ in stored]
    for (name, is_error), (_, is_shown_as_error) in zip(stored, shown_texts, strict=True):
        # Without a result, the daemon was killed during the call, or before it had stored it.
        assert is_error is None or is_shown_as_error == is_error, name
        assert name != "send_file" or is_shown_as_error
    return sum(bool(is_error) for _, is_error in stored)
