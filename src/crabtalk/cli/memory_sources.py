"""Stores: a memory that is open, at the daemon or in its file, and what can be done with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from .errors import CommandError
from .times import parse_timestamp

if TYPE_CHECKING:
    from crabtalk.client import SyncClient
    from crabtalk.memory import EntryKind, Memory, MemoryEntry, MemoryHit
    from crabtalk.protocol import wire

AGENTS_HINT = "each has a file in agents/ of the daemon's home"


class MemorySource(Protocol):
    """What can be done with a memory, wherever it is."""

    def search(self, query: str, limit: int) -> "list[MemoryHit]": ...

    def get_entry(self, name: str) -> "MemoryEntry": ...

    def list_entries(self) -> "list[MemoryEntry]": ...

    def replace(self, entries: "list[MemoryEntry]") -> None: ...


class FileMemorySource:
    def __init__(self, memory: "Memory") -> None:
        self._memory = memory

    def search(self, query: str, limit: int) -> "list[MemoryHit]":
        return self._memory.search(query, limit)

    def get_entry(self, name: str) -> "MemoryEntry":
        found = self._memory.get(name)
        if found is None:
            path = self._memory.path
            raise CommandError(
                f"nothing in {path} is called {name!r}; `crabtalk memory list --file {path}` has "
                "the names"
            )
        return found

    def list_entries(self) -> "list[MemoryEntry]":
        return self._memory.entries()

    def replace(self, entries: "list[MemoryEntry]") -> None:
        self._memory.replace(entries)


class DaemonMemorySource:
    def __init__(self, client: "SyncClient", agent: str, sender: str) -> None:
        self._client = client
        self._agent = agent
        self._sender = sender

    def search(self, query: str, limit: int) -> "list[MemoryHit]":
        from crabtalk.memory import MemoryEntry, MemoryHit

        with explain_not_found(AGENTS_HINT):
            found = self._client.search_memory(self._agent, query, limit=limit, sender=self._sender)
        return [
            MemoryHit(
                MemoryEntry(
                    id=place,
                    created_at=parse_timestamp(hit.created_at),
                    kind=parse_kind(hit.kind),
                    name=hit.name,
                    content=hit.content,
                    aliases=tuple(hit.aliases),
                ),
                hit.score,
            )
            for place, hit in enumerate(found.hits)
        ]

    def get_entry(self, name: str) -> "MemoryEntry":
        with explain_not_found(f"`crabtalk memory list {self._agent}` has the names"):
            page = self._client.list_memory(self._agent, sender=self._sender, name=name)
        return decode_entry(page.entries[0])

    def list_entries(self) -> "list[MemoryEntry]":
        found: list[MemoryEntry] = []
        after: int | None = None
        while True:
            with explain_not_found(AGENTS_HINT):
                page = self._client.list_memory(self._agent, sender=self._sender, after=after)
            found += map(decode_entry, page.entries)
            if not page.HasField("next_after"):
                return found
            after = page.next_after

    def replace(self, entries: "list[MemoryEntry]") -> None:
        from crabtalk.client import ServerError
        from crabtalk.protocol import FrameTooLargeError, TooLargeError

        try:
            with explain_not_found(AGENTS_HINT):
                self._client.replace_memory(
                    self._agent, map(encode_entry, entries), sender=self._sender
                )
        except FrameTooLargeError as error:
            raise make_too_large_error(f"are more than the {error.limit >> 20} MiB") from None
        except ServerError as error:
            if error.code != TooLargeError.code:
                raise
            raise make_too_large_error("have more names and aliases than") from None


def make_too_large_error(how: str) -> CommandError:
    return CommandError(
        f"the pages {how} a daemon takes at once; stop it, and load them with --file"
    )


@contextmanager
def explain_not_found(step: str) -> Iterator[None]:
    """What the daemon does not know, with the step that helps, unless it names those there are."""
    from crabtalk.client import ServerError

    try:
        yield
    except ServerError as error:
        if error.code != 404:
            raise
        has_step = "; there are: " in error.message
        raise CommandError(error.message if has_step else f"{error.message}; {step}") from None


def decode_entry(sent: "wire.MemoryEntry") -> "MemoryEntry":
    from crabtalk.memory import MemoryEntry

    return MemoryEntry(
        id=sent.number,
        created_at=sent.created_at,
        kind=parse_kind(sent.kind),
        name=sent.name,
        content=sent.content,
        aliases=tuple(sent.aliases),
    )


def encode_entry(entry: "MemoryEntry") -> "wire.MemoryEntry":
    from crabtalk.protocol import wire

    return wire.MemoryEntry(
        name=entry.name,
        kind=entry.kind.name.lower(),
        content=entry.content,
        aliases=entry.aliases,
        created_at=entry.created_at,
    )


def parse_kind(name: str) -> "EntryKind":
    from crabtalk.client import UnexpectedReplyError
    from crabtalk.memory import EntryKind

    try:
        return EntryKind[name.upper()]
    except KeyError:
        raise UnexpectedReplyError(f"the daemon has an entry of the kind {name!r}") from None
