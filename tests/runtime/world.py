"""What an engine needs beside a model: storage that can be watched and made to fail, tools that do
as a test says, a clock that stands still."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from crabtalk.model import Message, Provider, Tool
from crabtalk.runtime import Clock, Done, Env, Event, Hook, Limits, Run, Runtime, ToolDispatch
from crabtalk.storage import (
    Agent,
    EventRecord,
    MemoryStorage,
    MessageRecord,
    Pair,
    Record,
    Storage,
    StorageError,
    Stored,
)
from tests.runtime.provider import PATIENCE, Gate

CRAB = Agent("crab", "You are crab.", model="m")
OWL = Agent("owl", "You are owl.", model="wise")
PAIR = Pair("crab", "user")
NOW = "2026-01-02T03:04:05.678Z"

Carry = Callable[[ToolDispatch], Awaitable[str]]


class StoppedClock(Clock):
    """Everything happens at once, and runs are numbered."""

    def __init__(self) -> None:
        self._runs = 0

    def now(self) -> str:
        return NOW

    def seconds(self) -> float:
        return 0.0

    def new_id(self) -> str:
        self._runs += 1
        return f"run-{self._runs}"


class Tools(Hook):
    """Each tool is a coroutine function of the test's. Hears every event of every run."""

    def __init__(self, **tools: Carry) -> None:
        self._tools = tools
        self.heard: list[Event] = []

    def schema(self) -> list[Tool]:
        return [Tool(name) for name in self._tools]

    def on_event(self, run: Run, event: Event) -> None:
        self.heard.append(event)

    def dispatch(self, call: ToolDispatch) -> Awaitable[str] | None:
        carry = self._tools.get(call.name)
        return carry(call) if carry is not None else None


class WatchedStorage(MemoryStorage):
    """Appends are counted from 0: those in `failing` fail, those in `gates` wait at theirs. Notes
    in `journal` whose messages were kept."""

    def __init__(self, *agents: Agent) -> None:
        super().__init__(*agents)
        self.appends = 0
        self.failing: set[int] = set()
        self.gates: dict[int, Gate] = {}
        self.journal: list[str] = []
        self.traces: list[EventRecord] = []

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        number = self.appends
        self.appends += 1
        if number in self.gates:
            await self.gates[number].passed()
        if number in self.failing:
            raise StorageError("the disk is full; make room")
        await super().append(pair, records, create=create)
        said = [r.message.role for r in records if isinstance(r, MessageRecord)]
        if said:
            self.journal.append(f"{', '.join(said)} kept")
        self.traces += [record for record in records if isinstance(record, EventRecord)]


class UnhurriedStorage(MemoryStorage):
    """Gives others a moment before and after whatever it does."""

    async def load(self, pair: Pair) -> Stored | None:
        await moments(1)
        stored = await super().load(pair)
        await moments(1)
        return stored

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        await moments(1)
        await super().append(pair, records, create=create)
        await moments(1)


async def moments(number: int) -> None:
    """Everybody else who is ready has their turn, that many times."""
    for _ in range(number):
        await asyncio.sleep(0)


class World:
    """Makes runtimes, and closes them when the test is over."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self._made: list[Runtime] = []

    def runtime(
        self,
        provider: Provider,
        storage: Storage | None = None,
        *,
        agents: Sequence[Agent] = (CRAB, OWL),
        hook: Hook | None = None,
        env: Env | None = None,
        limits: Limits | None = None,
    ) -> Runtime:
        runtime = Runtime(
            storage or MemoryStorage(),
            provider,
            env or Env(hook, self.cwd),
            limits=limits,
            clock=StoppedClock(),
        )
        for agent in agents:
            runtime.register(agent)
        self._made.append(runtime)
        return runtime

    async def close(self) -> None:
        async with asyncio.timeout(PATIENCE):
            for runtime in self._made:
                await runtime.close()


async def told(events: AsyncIterator[Event]) -> list[Event]:
    """All events there are."""
    async with asyncio.timeout(PATIENCE):
        return [event async for event in events]


async def ended(run: Run) -> Done:
    async with asyncio.timeout(PATIENCE):
        return await run.wait()


async def kept(storage: Storage, pair: Pair = PAIR) -> list[Message]:
    """The history as storage has it."""
    stored = await storage.read(pair)
    return [record.message for record in stored.messages] if stored is not None else []


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str, agent: str = "") -> Message:
    return Message("assistant", text, agent=agent)
