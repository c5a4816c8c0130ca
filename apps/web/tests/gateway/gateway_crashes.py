"""Kills gateway and relay again and again while messages are sent. No message may be lost or
doubled, and every turn must end."""

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from apps.web.tests.gateway.device_client import (
    DeviceClient,
    DeviceSession,
    check_order,
    format_envelopes,
    list_texts,
    open_device,
)
from apps.web.tests.gateway.killable_process import build_gateway_process, build_relay_process
from apps.web.tests.gateway.send_file_tool import WebSendFileHook
from apps.web.tests.gateway.web_gateway_world import AGENTS, pair_with_device
from crabtalk.client import Client
from crabtalk_web.gateway import WebFolder
from crabtalk_web.stream import Envelope, FileEvent, ToolCallEnd, ToolCallStart, TurnEnd, TurnStart
from tests.daemon.in_process_daemon import InProcessDaemon, collect_events, run_daemon

ROUND = 60.0
# What the journal contains at each moment: a text has come from the relay, the daemon is about to
# get it, the daemon has it, a turn has begun or ended and the relay is about to get it, a file is
# about to be uploaded.
MOMENTS = {
    "read": b'"inbound"',
    "trying": b'"type":"Trying"',
    "handed": b'"type":"Handed"',
    "begun": b'"turn-start"',
    "ended": b'"turn-end"',
    "due": b'"stage":"due"',
}


@dataclass
class GatewayCrashReport:
    rounds: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    files: int = 0
    envelopes: int = 0
    took: float = 0.0

    def __str__(self) -> str:
        kills = ", ".join(f"{who} {count}" for who, count in sorted(self.kills.items()))
        return (
            f"{self.rounds} rounds in {self.took:.1f} s: {self.turns} turns, {self.files} files,"
            f" {self.envelopes} envelopes; killed {kills}; {dict(self.moments)}"
        )


class GatewayCrashRun:
    def __init__(self, path: Path, seed: str) -> None:
        self._path = path
        self._random = random.Random(seed)
        self._phone_texts: dict[str, list[str]] = {"crab": [], "owl": []}  # from the phone
        self._terminal_texts: dict[str, list[str]] = {"crab": [], "owl": []}  # from the terminal
        self._number = 0
        self.report = GatewayCrashReport()

    async def run(self, rounds: int) -> GatewayCrashReport:
        begun = time.monotonic()
        async with AsyncExitStack() as stack:
            self._daemon = await stack.enter_async_context(
                run_daemon(self._path, agents=AGENTS, hooks={"sending": WebSendFileHook()})
            )
            self._client: Client = await stack.enter_async_context(self._daemon.client())
            await self._set_up(stack, self._daemon)
            for number in range(rounds):
                async with asyncio.timeout(ROUND):
                    await self._round(number)
            await self._check()
        self.report.took = time.monotonic() - begun
        return self.report

    async def _set_up(self, stack: AsyncExitStack, daemon: InProcessDaemon) -> None:
        data, log = self._path / "relay", self._path / "relay.log"
        first = build_relay_process(data, log)
        await first.start()
        url = await first.read_line()
        await first.kill()
        self._relay = build_relay_process(data, log, urlsplit(url).port or 0)
        stack.push_async_callback(self._relay.kill)
        await self._relay.start()
        await self._relay.read_line()
        self._phone: DeviceClient = await stack.enter_async_context(open_device(url))
        credentials = await pair_with_device(self._phone, url)
        WebFolder(daemon.home).prepare()
        credentials.save(WebFolder(daemon.home).credentials_file)
        (daemon.home / "config").mkdir(exist_ok=True)
        work = self._path / "work"
        work.mkdir()
        (work / "note.txt").write_text("a note")
        (daemon.home / "config" / "web.toml").write_text(f'cwd = "{work}"\n')
        self._gateway = build_gateway_process(daemon.home, self._path / "gateway.log")
        stack.push_async_callback(self._gateway.kill)
        await self._gateway.start()
        self._sessions: dict[str, DeviceSession] = {
            agent: await self._phone.wait_for_session(agent) for agent in AGENTS
        }

    async def _round(self, number: int) -> None:
        """Messages are sent while a process is killed and started again."""
        kind = self._random.choice(["time", *MOMENTS])
        seen = self._count_moments(kind)
        talking = asyncio.ensure_future(self._talk_to_all())
        await self._wait_for_moment(kind, seen)
        victims = self._random.choice(
            [(self._gateway,), (self._gateway,), (self._relay,), (self._gateway, self._relay)]
        )
        for victim in victims:
            self.report.kills["gateway" if victim is self._gateway else "relay"] += 1
            await victim.kill()
        await asyncio.sleep(self._random.uniform(0, 0.1))
        for victim in victims:
            await victim.start()
        await talking
        if self._random.random() < 0.5:
            # Otherwise it is killed again during startup.
            await asyncio.sleep(self._random.uniform(0.1, 0.7))
        self.report.rounds = number + 1

    async def _wait_for_moment(self, kind: str, seen: int) -> None:
        """Wait some time, or for the moment of a journal entry, or a little longer."""
        if kind == "time":
            await asyncio.sleep(self._random.uniform(0, 0.25))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(1.5):  # the phone may not have sent anything
                while self._count_moments(kind) <= seen:
                    await asyncio.sleep(0.001)
                self.report.moments[kind] += 1
        await asyncio.sleep(self._random.choice([0, 0, 0.002, 0.01]))

    def _count_moments(self, kind: str) -> int:
        """How many such entries were written."""
        if kind == "time":
            return 0
        journals = WebFolder(self._daemon.home).journal_folder.glob("*.jsonl")
        return sum(path.read_bytes().count(MOMENTS[kind]) for path in journals)

    async def _talk_to_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for agent in AGENTS:
                group.create_task(self._talk_to(agent))

    async def _talk_to(self, agent: str) -> None:
        for _ in range(self._random.randint(1, 2)):
            await asyncio.sleep(self._random.uniform(0, 0.1))
            self._number += 1
            text = build_script(self._number, self._random)
            if self._random.random() < 0.5:
                self._phone_texts[agent].append(text)
                await self._phone.send_text(
                    self._sessions[agent], text, local_id=f"n{self._number}"
                )
            else:
                self._terminal_texts[agent].append(text)
                await collect_events(self._client.stream(agent, text))

    async def _check(self) -> None:
        for agent, session in self._sessions.items():
            said, typed = self._phone_texts[agent], self._terminal_texts[agent]
            expected = [f"answer {parse_number(text)}" for text in (*said, *typed)]
            sent = sum("send_file" in text for text in (*said, *typed))
            is_done = partial(is_settled, turns=len(expected), files=sent)
            envelopes = await self._phone.wait_for_envelopes(session, is_done, patience=40)
            check_order(envelopes)
            page = await self._client.list_messages(agent, limit=5000)
            users = [m.content for m in page.messages if m.role == "user"]
            assert Counter(users) == Counter([*said, *typed]), "the daemon has each of it once"
            answers = [text for text in list_texts(envelopes) if text.startswith("answer")]
            assert Counter(answers) == Counter(expected), format_envelopes(envelopes)
            assert Counter(list_texts(envelopes, "user")) == Counter(typed), format_envelopes(
                envelopes
            )
            assert answers == [
                m.content for m in page.messages if m.content.startswith("answer")
            ], "in the order they were given"
            starts = Counter(e.ev.call for e in envelopes if isinstance(e.ev, ToolCallStart))
            ends = Counter(e.ev.call for e in envelopes if isinstance(e.ev, ToolCallEnd))
            assert starts == ends
            assert sum(isinstance(e.ev, FileEvent) for e in envelopes) == sent, format_envelopes(
                envelopes
            )
            self.report.files += sent
            messages = await self._phone.read_messages(session)
            assert [m.seq for m in messages] == list(range(1, len(messages) + 1))
            assert len({m.local_id for m in messages}) == len(messages)
            self.report.turns += len(expected)
            self.report.envelopes += len(envelopes)


def build_script(number: int, source: random.Random) -> str:
    """A turn, some with tools and some with more steps."""
    if source.random() < 0.4:
        return (
            f'!say look {number}\n!tool recall {{"query": "{number}"}}\n!then\n!say answer {number}'
        )
    if source.random() < 0.2:
        return f'!tool send_file {{"path": "note.txt"}}\n!then\n!say answer {number}'
    if source.random() < 0.3:
        return f"!think about {number}\n!say answer {number}"
    return f"!say answer {number}"


def parse_number(text: str) -> int:
    return int(text.rsplit(" ", 1)[1])


def is_settled(envelopes: list[Envelope], turns: int, files: int) -> bool:
    opened = sum(isinstance(e.ev, TurnStart) for e in envelopes)
    closed = sum(isinstance(e.ev, TurnEnd) for e in envelopes)
    answers = sum(text.startswith("answer") for text in list_texts(envelopes))
    sent = sum(isinstance(e.ev, FileEvent) for e in envelopes)
    return opened == closed and answers >= turns and sent >= files
