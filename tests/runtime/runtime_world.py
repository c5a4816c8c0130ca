"""Test doubles for the engine: storage that records appends and fails on demand, scripted tools,
and a stopped clock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from crabtalk.model import Message, Provider, Tool
from crabtalk.runtime import (
    Clock,
    Done,
    Env,
    Event,
    Hook,
    Run,
    Runtime,
    RuntimeLimits,
    ToolDispatch,
)
from crabtalk.storage import (
    Agent,
    EventRecord,
    MemoryStorage,
    MessageRecord,
    Pair,
    Record,
    Storage,
    StorageError,
    StoredConversation,
)
from tests.runtime.scripted_provider import TEST_TIMEOUT, Gate

CRAB = Agent("crab", "You are crab.", model="m")
OWL = Agent("owl", "You are owl.", model="wise")
PAIR = Pair("crab", "user")
NOW = "2026-01-02T03:04:05.678Z"

ToolFunction = Callable[[ToolDispatch], Awaitable[str]]


class StoppedClock(Clock):
    """Time stands still, and run ids are numbered."""

    def __init__(self) -> None:
        self._runs = 0

    def now(self) -> str:
        return NOW

    def monotonic(self) -> float:
        return 0.0

    def new_id(self) -> str:
        self._runs += 1
        return f"run-{self._runs}"


class ScriptedTools(Hook):
    """Each tool is a coroutine function of the test. Records every event of every run."""

    def __init__(self, **tools: ToolFunction) -> None:
        self._tools = tools
        self.events: list[Event] = []

    def schema(self) -> list[Tool]:
        return [Tool(name) for name in self._tools]

    def on_event(self, run: Run, event: Event) -> None:
        self.events.append(event)

    def dispatch(self, call: ToolDispatch) -> Awaitable[str] | None:
        tool = self._tools.get(call.name)
        return tool(call) if tool is not None else None


class WatchedStorage(MemoryStorage):
    """Counts appends from 0: those in `failing_appends` fail, those in `append_gates` wait at their
    gate. `journal` has the roles of the messages in each append."""

    def __init__(self, *agents: Agent) -> None:
        super().__init__(*agents)
        self.appends = 0
        self.failing_appends: set[int] = set()
        self.append_gates: dict[int, Gate] = {}
        self.journal: list[str] = []
        self.event_records: list[EventRecord] = []

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        number = self.appends
        self.appends += 1
        if number in self.append_gates:
            await self.append_gates[number].pass_through()
        if number in self.failing_appends:
            raise StorageError("the disk is full; make room")
        await super().append(pair, records, create=create)
        roles = [r.message.role for r in records if isinstance(r, MessageRecord)]
        if roles:
            self.journal.append(f"{', '.join(roles)} stored")
        self.event_records += [record for record in records if isinstance(record, EventRecord)]


class YieldingStorage(MemoryStorage):
    """Lets other tasks run before and after each load and append."""

    async def load_and_repair(self, pair: Pair) -> StoredConversation | None:
        await run_ready_tasks(1)
        stored = await super().load_and_repair(pair)
        await run_ready_tasks(1)
        return stored

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        await run_ready_tasks(1)
        await super().append(pair, records, create=create)
        await run_ready_tasks(1)


async def run_ready_tasks(number: int) -> None:
    """Lets all other ready tasks run, that many times."""
    for _ in range(number):
        await asyncio.sleep(0)


class RuntimeWorld:
    """Creates runtimes, and closes them at the end of the test."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self._runtimes: list[Runtime] = []

    def make_runtime(
        self,
        provider: Provider,
        storage: Storage | None = None,
        *,
        agents: Sequence[Agent] = (CRAB, OWL),
        hook: Hook | None = None,
        env: Env | None = None,
        limits: RuntimeLimits | None = None,
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
        self._runtimes.append(runtime)
        return runtime

    async def close(self) -> None:
        async with asyncio.timeout(TEST_TIMEOUT):
            for runtime in self._runtimes:
                await runtime.close()


async def collect_events(events: AsyncIterator[Event]) -> list[Event]:
    async with asyncio.timeout(TEST_TIMEOUT):
        return [event async for event in events]


async def wait_for_done(run: Run) -> Done:
    async with asyncio.timeout(TEST_TIMEOUT):
        return await run.wait()


async def read_history(storage: Storage, pair: Pair = PAIR) -> list[Message]:
    """The messages of a conversation in storage."""
    stored = await storage.read_conversation(pair)
    return [record.message for record in stored.messages] if stored is not None else []


def user_message(text: str) -> Message:
    return Message("user", text)


def assistant_message(text: str, agent: str = "") -> Message:
    return Message("assistant", text, agent=agent)
