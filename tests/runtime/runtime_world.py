"""What an engine needs beside a model: storage that can be watched and made to fail, tools that do
as a test says, a clock that stands still."""

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
    """Everything happens at once, and runs are numbered."""

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
    """Each tool is a coroutine function of the test's. Hears every event of every run."""

    def __init__(self, **tools: ToolFunction) -> None:
        self._tools = tools
        self.events: list[Event] = []

    def schema(self) -> list[Tool]:
        return [Tool(name) for name in self._tools]

    def on_event(self, run: Run, event: Event) -> None:
        self.events.append(event)

    def dispatch(self, call: ToolDispatch) -> Awaitable[str] | None:
        carry = self._tools.get(call.name)
        return carry(call) if carry is not None else None


class WatchedStorage(MemoryStorage):
    """Appends are counted from 0: those in `failing` fail, those in `gates` wait at theirs. Notes
    in `journal` whose messages were kept."""

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
        said = [r.message.role for r in records if isinstance(r, MessageRecord)]
        if said:
            self.journal.append(f"{', '.join(said)} kept")
        self.event_records += [record for record in records if isinstance(record, EventRecord)]


class YieldingStorage(MemoryStorage):
    """Gives others a moment before and after whatever it does."""

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
    """Everybody else who is ready has their turn, that many times."""
    for _ in range(number):
        await asyncio.sleep(0)


class RuntimeWorld:
    """Makes runtimes, and closes them when the test is over."""

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
    """All events there are."""
    async with asyncio.timeout(TEST_TIMEOUT):
        return [event async for event in events]


async def wait_for_done(run: Run) -> Done:
    async with asyncio.timeout(TEST_TIMEOUT):
        return await run.wait()


async def read_history(storage: Storage, pair: Pair = PAIR) -> list[Message]:
    """The history as storage has it."""
    stored = await storage.read_conversation(pair)
    return [record.message for record in stored.messages] if stored is not None else []


def user_message(text: str) -> Message:
    return Message("user", text)


def assistant_message(text: str, agent: str = "") -> Message:
    return Message("assistant", text, agent=agent)
