"""remember, forget, recall: what an agent knows beyond the conversation it is in.

Notes belong to whoever spoke when they were written: see memory_access. Archives come from
compaction: they are one sender's history, and found by that sender only unless [hooks.sessions]
lets the agent look further for its owner.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from crabtalk.memory import Entry, Kind, KindError, StoreError, author_of, without_author
from crabtalk.policy import Owners
from crabtalk.runtime import Clock, ToolDispatch, ToolError, title_of
from crabtalk.storage import Agent, AgentError, Archive, Pair, StorageError

from .memories import Memories
from .memory_access import MemoryAccess, Scope, forget_note, grant_access, write_note
from .schema import UNTOLD
from .sessions import Reach, reach_of
from .tool import Tool, ToolHook

if TYPE_CHECKING:
    from crabtalk.memory import Memory

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
    # "author": each person's notes are their own; "agent": all are everybody's; "sender": a
    # memory, and a file, for each sender.
    scope: Scope = "author"

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
        access = hook.access_for(call.run.keeper, call.run.origin)
        async with hook.memory(call) as memory:
            with refused():
                await asyncio.to_thread(
                    write_note, memory, access, self.note, self.content, aliases
                )
        return f"remembered: {self.note}"


class Forget(Tool):
    """Remove a note."""

    name: ClassVar[str] = "forget"
    kind: ClassVar[str] = "memory-write"

    note: str = msgspec.field(name="name")

    async def run(self, call: ToolDispatch, hook: "MemoryHook") -> str:
        """Cancelled, it may or may not be gone."""
        access = hook.access_for(call.run.keeper, call.run.origin)
        async with hook.memory(call) as memory:
            with refused():
                is_gone = await asyncio.to_thread(forget_note, memory, access, self.note)
        return f"forgot: {self.note}" if is_gone else f"no entry named: {self.note}"


class Recall(Tool):
    """Search your memory."""

    name: ClassVar[str] = "recall"
    kind: ClassVar[str] = "memory-read"

    query: str
    limit: Annotated[int | None, UNTOLD] = None
    sender: Annotated[str | None, UNTOLD] = None  # whose notes; others' are for the owner only

    async def run(self, call: ToolDispatch, hook: "MemoryHook") -> str:
        keeper, origin = call.run.keeper, call.run.origin
        limit = min(max(1, self.limit or hook.settings(keeper).recall_limit), MOST)
        person = self.sender or origin
        if person != origin and not hook.owners().is_owner(origin):
            raise ToolError("permission denied: only the owner may recall the notes of others")
        access = hook.access_for(keeper, person)
        async with hook.memory(call, person) as memory:
            hits = await asyncio.to_thread(memory.search, self.query, limit, access.view)
        now, own = unix(hook.clock.now()), hook.access_for(keeper, origin)
        return "\n---\n".join(shown(hit.entry, now, own) for hit in hits) or "no memories found"


class MemoryHook(ToolHook):
    tools: ClassVar[tuple[type[Tool], ...]] = (Forget, Recall, Remember)

    def __init__(
        self,
        memories: Memories,
        clock: Clock | None = None,
        owners: Callable[[], Owners] | None = None,
    ) -> None:
        """`owners` says who the owner is now."""
        self._memories = memories
        known = Owners() if owners is None else None
        self.owners: Callable[[], Owners] = owners or (lambda: known or Owners())
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

    def access_for(self, agent: str, sender: str) -> MemoryAccess:
        """What a sender may see and change of an agent's memory. Only for the owner may an agent
        look further than the sender's own archives."""
        owners = self.owners()
        reach = self._reaches.get(agent, Reach.SENDER)
        sees_all = reach is not Reach.SENDER and owners.is_owner(sender)
        return grant_access(
            self.settings(agent).scope, owners, Pair(agent, sender), sees_all_archives=sees_all
        )

    @asynccontextmanager
    async def memory(self, call: ToolDispatch, person: str = "") -> AsyncIterator["Memory"]:
        """The one a call is about: that of the run's origin, or of another person. Fails with
        ToolError."""
        with refused():
            async with self.of(call.run.keeper, person or call.run.origin) as memory:
                yield memory

    @asynccontextmanager
    async def of(self, agent: str, sender: str) -> AsyncIterator["Memory"]:
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


def shown(entry: Entry, now: float, own: MemoryAccess) -> str:
    """An entry as an agent reads it; of an archive also what it is about, and how old it is, and of
    a note that is not the reader's own who wrote it."""
    author = "" if entry.kind is Kind.ARCHIVE else author_of(entry)
    head = f"## {' '.join(without_author(entry).name.split())[:NAME]}"
    if author and author not in own.namespaces:
        head += f"\nwritten by the sender {author!r}"
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
