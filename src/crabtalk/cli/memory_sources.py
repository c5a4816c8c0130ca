"""An open memory, at the daemon or in a file, behind one interface."""

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
    """Operations on a memory, wherever it is."""

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
        entry = self._memory.get(name)
        if entry is None:
            path = self._memory.path
            raise CommandError(
                f"nothing in {path} is called {name!r}; `crabtalk memory list --file {path}` has "
                "the names"
            )
        return entry

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
            page = self._client.search_memory(self._agent, query, limit=limit, sender=self._sender)
        return [
            MemoryHit(
                MemoryEntry(
                    id=index,
                    created_at=parse_timestamp(hit.created_at),
                    kind=parse_kind(hit.kind),
                    name=hit.name,
                    content=hit.content,
                    aliases=tuple(hit.aliases),
                ),
                hit.score,
            )
            for index, hit in enumerate(page.hits)
        ]

    def get_entry(self, name: str) -> "MemoryEntry":
        with explain_not_found(f"`crabtalk memory list {self._agent}` has the names"):
            page = self._client.list_memory(self._agent, sender=self._sender, name=name)
        return decode_entry(page.entries[0])

    def list_entries(self) -> "list[MemoryEntry]":
        entries: list[MemoryEntry] = []
        after: int | None = None
        while True:
            with explain_not_found(AGENTS_HINT):
                page = self._client.list_memory(self._agent, sender=self._sender, after=after)
            entries += map(decode_entry, page.entries)
            if not page.HasField("next_after"):
                return entries
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
    """Turn a 404 of the daemon into CommandError with the next step.

    The step is left out if the daemon's sentence already lists the names.
    """
    from crabtalk.client import ServerError

    try:
        yield
    except ServerError as error:
        if error.code != 404:
            raise
        has_names = "; there are: " in error.message
        raise CommandError(error.message if has_names else f"{error.message}; {step}") from None


def decode_entry(entry: "wire.MemoryEntry") -> "MemoryEntry":
    from crabtalk.memory import MemoryEntry

    return MemoryEntry(
        id=entry.number,
        created_at=entry.created_at,
        kind=parse_kind(entry.kind),
        name=entry.name,
        content=entry.content,
        aliases=tuple(entry.aliases),
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
