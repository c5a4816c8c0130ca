"""remember, forget, recall: what an agent knows beyond the conversation it is in.

Notes are the agent's own, for all it talks to unless its file has one memory for each sender.
Archives come from compaction: they are one sender's history, and found by that sender only unless
[hooks.sessions] lets the agent look further.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from crabtalk.memory import Add, Entry, Hit, Kind, KindError, Memory, Remove, StoreError, Update
from crabtalk.runtime import Clock, ToolDispatch, ToolError, title_of
from crabtalk.storage import Agent, AgentError, Archive, Pair, StorageError, log_name

from .memories import Memories
from .schema import UNTOLD
from .sessions import Reach, reach_of
from .tool import Tool, ToolHook

LIMIT = 5
MOST = 50
NAME = 200  # characters of a name that are shown
DAY = 86400
GUIDANCE = (
    "Recall before you say you do not know; remember what will matter later; forget what proved "
    "wrong."
)


class Settings(msgspec.Struct, frozen=True):
    """An agent's [hooks.memory]."""

    recall_limit: Annotated[int, Meta(ge=1, le=MOST)] = LIMIT
    # "sender": a memory for each, of which no other knows.
    scope: Literal["agent", "sender"] = "agent"

    @classmethod
    def of(cls, agent: Agent) -> "Settings":
        try:
            return msgspec.convert(agent.hooks.get("memory", {}), cls)
        except msgspec.ValidationError as error:
            raise AgentError(f"hooks.memory: {error}") from None


class Remember(Tool):
    """Keep a note; replaces one of that name."""

    name: ClassVar[str] = "remember"
    kind: ClassVar[str] = "memory-write"

    note: str = msgspec.field(name="name")
    content: str
    aliases: list[str] | None = None

    async def run(self, call: ToolDispatch, hook: "MemoryHook") -> str:
        """Cancelled, it may or may not have been kept."""
        aliases = tuple(self.aliases) if self.aliases is not None else None
        async with hook.memory(call) as memory:
            with refused():
                await asyncio.to_thread(keep, memory, self.note, self.content, aliases)
        return f"remembered: {self.note}"


class Forget(Tool):
    """Remove a note."""

    name: ClassVar[str] = "forget"
    kind: ClassVar[str] = "memory-write"

    note: str = msgspec.field(name="name")

    async def run(self, call: ToolDispatch, hook: "MemoryHook") -> str:
        """Cancelled, it may or may not be gone."""
        async with hook.memory(call) as memory:
            if memory.get(self.note) is None:
                return f"no entry named: {self.note}"
            with refused():
                await asyncio.to_thread(memory.apply, Remove(self.note, kind=Kind.NOTE))
        return f"forgot: {self.note}"


class Recall(Tool):
    """Search your memory."""

    name: ClassVar[str] = "recall"
    kind: ClassVar[str] = "memory-read"

    query: str
    limit: Annotated[int | None, UNTOLD] = None

    async def run(self, call: ToolDispatch, hook: "MemoryHook") -> str:
        limit = min(max(1, self.limit or hook.settings(call.run.keeper).recall_limit), MOST)
        async with hook.memory(call) as memory:
            hits = await asyncio.to_thread(hook.visible, call, memory, self.query, limit)
        now = unix(hook.clock.now())
        return "\n---\n".join(shown(hit.entry, now) for hit in hits) or "no memories found"


class MemoryHook(ToolHook):
    tools: ClassVar[tuple[type[Tool], ...]] = (Forget, Recall, Remember)

    def __init__(self, memories: Memories, clock: Clock | None = None) -> None:
        self._memories = memories
        self.clock = clock or Clock()
        self._settings: dict[str, Settings] = {}
        self._reaches: dict[str, Reach] = {}

    def on_build_agent(self, agent: Agent) -> Agent:
        """Adds when to use the tools, to the prompt of those who may. Raises AgentError."""
        Settings.of(agent)
        if agent.tools and not {"recall", "remember", "forget"} <= set(agent.tools):
            return agent
        return msgspec.structs.replace(agent, prompt=f"{agent.prompt}\n\n{GUIDANCE}")

    def on_register_agent(self, name: str, agent: Agent) -> None:
        self._settings[name] = Settings.of(agent)
        self._reaches[name] = reach_of(agent)

    def on_unregister_agent(self, name: str) -> None:
        self._settings.pop(name, None)
        self._reaches.pop(name, None)

    def settings(self, agent: str) -> Settings:
        return self._settings.get(agent, Settings())

    @asynccontextmanager
    async def memory(self, call: ToolDispatch) -> AsyncIterator[Memory]:
        """The one a call is about. Fails with ToolError."""
        with refused():
            async with self.of(call.run.keeper, call.run.origin) as memory:
                yield memory

    @asynccontextmanager
    async def of(self, agent: str, sender: str) -> AsyncIterator[Memory]:
        """What an agent remembers when it talks to a sender. Raises StoreError."""
        is_own = self.settings(agent).scope == "sender"
        async with self._memories.of(agent, sender if is_own else "") as memory:
            yield memory

    async def archive(self, pair: Pair, archive: Archive) -> None:
        """Keeps what a compaction made; the same again changes nothing. Raises StorageError."""
        at = int(unix(archive.archived_at))
        try:
            async with self.of(*pair) as memory:
                await asyncio.to_thread(memory.archive, archive.name, archive.summary, at)
        except StoreError as error:
            raise StorageError(f"the archive cannot be kept: {error}") from error

    async def rename(self, old: str, new: str) -> None:
        """Raises StorageError when it stays where it was."""
        try:
            await self._memories.rename(old, new)
        except OSError as error:
            raise StorageError(
                f"what {old} remembers stays under that name: {error.strerror}"
            ) from error

    def visible(self, call: ToolDispatch, memory: Memory, query: str, limit: int) -> list[Hit]:
        """The best of what the run may see."""
        keeper, origin = call.run.keeper, call.run.origin
        if self._reaches.get(keeper, Reach.SENDER) is not Reach.SENDER:
            return memory.search(query, limit)
        own = log_name(Pair(keeper, origin))
        wanted = limit
        while True:
            hits = memory.search(query, wanted)
            seen = [hit for hit in hits if is_for(hit.entry, own)]
            if len(seen) >= limit or len(hits) < wanted:
                return seen[:limit]
            wanted *= 4


def is_for(entry: Entry, conversation: str) -> bool:
    """Archives are named after their conversation, and numbered."""
    return entry.kind is not Kind.ARCHIVE or entry.name.rpartition("-")[0] == conversation


def keep(memory: Memory, name: str, content: str, aliases: tuple[str, ...] | None) -> None:
    """A new note, or the old one with new content. Raises StoreError."""
    if memory.get(name) is None:
        memory.apply(Add(name, content, aliases or ()))
    else:
        memory.apply(Update(name, content, aliases, kind=Kind.NOTE))


def shown(entry: Entry, now: float) -> str:
    """An entry as an agent reads it; of an archive also what it is about, and how old it is."""
    head = f"## {' '.join(entry.name.split())[:NAME]}"
    if entry.kind is Kind.ARCHIVE:
        head += f"\narchive: {title_of(entry.content)} · {age(now - entry.created_at)}"
    return f"{head}\n{entry.content}"


def age(seconds: float) -> str:
    for size, unit in ((365 * DAY, "year"), (30 * DAY, "month"), (DAY, "day"), (3600, "hour")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''} old"
    return "new"


def unix(time: str) -> float:
    """Seconds since 1970, from RFC 3339."""
    return datetime.fromisoformat(time).timestamp()


@contextmanager
def refused() -> Iterator[None]:
    """What the store refuses, as an agent is told."""
    try:
        yield
    except KindError as error:
        raise ToolError(f"permission denied: {error}") from None
    except StoreError as error:
        raise ToolError(f"memory failed: {error}") from None
