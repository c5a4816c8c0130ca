"""remember, forget, recall: the tools for an agent's memory across conversations.

A note belongs to the sender in whose turn it was written: see memory_access. An archive comes from
compaction and holds one sender's history. Only that sender finds it, unless [hooks.sessions] lets
the agent search further for its owner.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from crabtalk.memory import (
    EntryKind,
    EntryKindError,
    MemoryEntry,
    MemoryStoreError,
    get_author,
    strip_author,
)
from crabtalk.policy import Owners
from crabtalk.runtime import Clock, ToolDispatch, ToolError, make_title
from crabtalk.storage import Agent, AgentError, Archive, Pair, StorageError

from .memory_access import MemoryAccess, MemoryScope, forget_note, grant_access, write_note
from .memory_pool import MemoryPool
from .sessions import SessionScope, read_session_scope
from .tool import AgentTool, ToolHook
from .tool_schema import HIDDEN_FROM_MODEL

if TYPE_CHECKING:
    from crabtalk.memory import Memory

DEFAULT_LIMIT = 5
MAX_LIMIT = 50
MAX_NAME_LENGTH = 200  # characters of a name that are shown
SECONDS_PER_DAY = 86400
GUIDANCE = (
    "Recall before you say you do not know; remember what will matter later; forget what proved "
    "wrong."
)


class MemorySettings(msgspec.Struct, frozen=True):
    """An agent's [hooks.memory]."""

    recall_limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT
    # "author": each person sees only their own notes; "agent": all senders share all notes;
    # "sender": each sender has a memory, and a file, of its own.
    scope: MemoryScope = "author"

    @classmethod
    def from_agent(cls, agent: Agent) -> "MemorySettings":
        try:
            return msgspec.convert(agent.hooks.get("memory", {}), cls)
        except msgspec.ValidationError as error:
            raise AgentError(f"hooks.memory: {error}") from None


class RememberTool(AgentTool):
    """Keep a note; replaces one of that name."""

    name: ClassVar[str] = "remember"
    kind: ClassVar[str] = "memory-write"

    note: str = msgspec.field(name="name")
    content: str
    aliases: list[str] | None = None

    async def run(self, call: ToolDispatch, hook: "MemoryHook") -> str:
        """Write the note. When this is cancelled, it may or may not be stored."""
        aliases = tuple(self.aliases) if self.aliases is not None else None
        access = hook.grant_sender_access(call.run.memory_owner, call.run.origin)
        async with hook.acquire_for_call(call) as memory:
            with translate_store_errors():
                await asyncio.to_thread(
                    write_note, memory, access, self.note, self.content, aliases
                )
        return f"remembered: {self.note}"


class ForgetTool(AgentTool):
    """Remove a note."""

    name: ClassVar[str] = "forget"
    kind: ClassVar[str] = "memory-write"

    note: str = msgspec.field(name="name")

    async def run(self, call: ToolDispatch, hook: "MemoryHook") -> str:
        """Remove the note. When this is cancelled, it may or may not be gone."""
        access = hook.grant_sender_access(call.run.memory_owner, call.run.origin)
        async with hook.acquire_for_call(call) as memory:
            with translate_store_errors():
                is_gone = await asyncio.to_thread(forget_note, memory, access, self.note)
        return f"forgot: {self.note}" if is_gone else f"no entry named: {self.note}"


class RecallTool(AgentTool):
    """Search your memory."""

    name: ClassVar[str] = "recall"
    kind: ClassVar[str] = "memory-read"

    query: str
    limit: Annotated[int | None, HIDDEN_FROM_MODEL] = None
    # Whose notes to search; only the owner may search those of other senders.
    sender: Annotated[str | None, HIDDEN_FROM_MODEL] = None

    async def run(self, call: ToolDispatch, hook: "MemoryHook") -> str:
        agent, origin = call.run.memory_owner, call.run.origin
        limit = min(max(1, self.limit or hook.get_settings(agent).recall_limit), MAX_LIMIT)
        person = self.sender or origin
        if person != origin and not hook.get_owners().is_owner(origin):
            raise ToolError("permission denied: only the owner may recall the notes of others")
        access = hook.grant_sender_access(agent, person)
        async with hook.acquire_for_call(call, person) as memory:
            hits = await asyncio.to_thread(memory.search, self.query, limit, access.view)
        now, own = parse_timestamp(hook.clock.now()), hook.grant_sender_access(agent, origin)
        return (
            "\n---\n".join(format_entry(hit.entry, now, own) for hit in hits) or "no memories found"
        )


class MemoryHook(ToolHook):
    tools: ClassVar[tuple[type[AgentTool], ...]] = (ForgetTool, RecallTool, RememberTool)

    def __init__(
        self,
        memories: MemoryPool,
        clock: Clock | None = None,
        owners: Callable[[], Owners] | None = None,
    ) -> None:
        """`owners` returns the current owners."""
        self._pool = memories
        default = Owners() if owners is None else None
        self.get_owners: Callable[[], Owners] = owners or (lambda: default or Owners())
        self.clock = clock or Clock()
        self._settings: dict[str, MemorySettings] = {}
        self._session_scopes: dict[str, SessionScope] = {}

    def on_build_agent(self, agent: Agent) -> Agent:
        """Add guidance to the prompt of agents that have all three tools. Raises AgentError."""
        MemorySettings.from_agent(agent)
        if agent.tools and not {"recall", "remember", "forget"} <= set(agent.tools):
            return agent
        return msgspec.structs.replace(agent, prompt=f"{agent.prompt}\n\n{GUIDANCE}")

    def on_register_agent(self, name: str, agent: Agent) -> None:
        self._settings[name] = MemorySettings.from_agent(agent)
        self._session_scopes[name] = read_session_scope(agent)

    def on_unregister_agent(self, name: str) -> None:
        self._settings.pop(name, None)
        self._session_scopes.pop(name, None)

    def get_settings(self, agent: str) -> MemorySettings:
        return self._settings.get(agent, MemorySettings())

    def grant_sender_access(self, agent: str, sender: str) -> MemoryAccess:
        """Return what a sender may see and change in an agent's memory.

        Only the owner can see archives of other senders, and only if [hooks.sessions] allows it.
        """
        owners = self.get_owners()
        session_scope = self._session_scopes.get(agent, SessionScope.SENDER)
        sees_all = session_scope is not SessionScope.SENDER and owners.is_owner(sender)
        return grant_access(
            self.get_settings(agent).scope, owners, Pair(agent, sender), sees_all_archives=sees_all
        )

    @asynccontextmanager
    async def acquire_for_call(
        self, call: ToolDispatch, person: str = ""
    ) -> AsyncIterator["Memory"]:
        """Acquire the memory for the run's origin, or for another `person`. Raises ToolError."""
        with translate_store_errors():
            async with self.acquire(call.run.memory_owner, person or call.run.origin) as memory:
                yield memory

    @asynccontextmanager
    async def acquire(self, agent: str, sender: str) -> AsyncIterator["Memory"]:
        """Acquire the memory an agent uses with a sender. Raises MemoryStoreError."""
        is_own = self.get_settings(agent).scope == "sender"
        async with self._pool.acquire(agent, sender if is_own else "") as memory:
            yield memory

    async def archive(self, pair: Pair, archive: Archive) -> None:
        """Store the archive of a compaction; storing it twice changes nothing. Raises
        StorageError."""
        at = int(parse_timestamp(archive.archived_at))
        try:
            async with self.acquire(*pair) as memory:
                await asyncio.to_thread(memory.archive, archive.name, archive.summary, at)
        except MemoryStoreError as error:
            raise StorageError(f"the archive cannot be kept: {error}") from error

    async def rename(self, old: str, new: str) -> None:
        """Rename an agent's memories. Raises StorageError if they keep the old name."""
        try:
            await self._pool.rename(old, new)
        except OSError as error:
            raise StorageError(
                f"what {old} remembers stays under that name: {error.strerror}"
            ) from error


def format_entry(entry: MemoryEntry, now: float, own: MemoryAccess) -> str:
    """Format an entry for an agent.

    An archive gets its title and age; a note of another person gets its author.
    """
    author = "" if entry.kind is EntryKind.ARCHIVE else get_author(entry)
    head = f"## {' '.join(strip_author(entry).name.split())[:MAX_NAME_LENGTH]}"
    if author and author not in own.namespaces:
        head += f"\nwritten by the sender {author!r}"
    if entry.kind is EntryKind.ARCHIVE:
        head += f"\narchive: {make_title(entry.content)} · {format_age(now - entry.created_at)}"
    return f"{head}\n{entry.content}"


def format_age(seconds: float) -> str:
    for size, unit in (
        (365 * SECONDS_PER_DAY, "year"),
        (30 * SECONDS_PER_DAY, "month"),
        (SECONDS_PER_DAY, "day"),
        (3600, "hour"),
    ):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''} old"
    return "new"


def parse_timestamp(time: str) -> float:
    """Convert an RFC 3339 time to seconds since 1970."""
    return datetime.fromisoformat(time).timestamp()


@contextmanager
def translate_store_errors() -> Iterator[None]:
    """Convert errors of the memory store to ToolError."""
    try:
        yield
    except EntryKindError as error:
        raise ToolError(f"permission denied: {error}") from None
    except MemoryStoreError as error:
        raise ToolError(f"memory failed: {error}") from None
