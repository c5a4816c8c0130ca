"""Stores: a memory that is open, at the daemon or in its file, and what can be done with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from .complaints import CommandError
from .moments import seconds_of

if TYPE_CHECKING:
    from crabtalk.client import SyncClient
    from crabtalk.memory import Entry, Hit, Kind, Memory
    from crabtalk.protocol import wire

AGENTS = "each has a file in agents/ of the daemon's home"


class Store(Protocol):
    """What can be done with a memory, wherever it is."""

    def search(self, query: str, limit: int) -> "list[Hit]": ...

    def entry(self, name: str) -> "Entry": ...

    def entries(self) -> "list[Entry]": ...

    def replace(self, entries: "list[Entry]") -> None: ...


class FiledMemory:
    def __init__(self, memory: "Memory") -> None:
        self._memory = memory

    def search(self, query: str, limit: int) -> "list[Hit]":
        return self._memory.search(query, limit)

    def entry(self, name: str) -> "Entry":
        found = self._memory.get(name)
        if found is None:
            path = self._memory.path
            raise CommandError(
                f"nothing in {path} is called {name!r}; `crabtalk memory list --file {path}` has "
                "the names"
            )
        return found

    def entries(self) -> "list[Entry]":
        return self._memory.entries()

    def replace(self, entries: "list[Entry]") -> None:
        self._memory.replace(entries)


class ServedMemory:
    def __init__(self, client: "SyncClient", agent: str, sender: str) -> None:
        self._client = client
        self._agent = agent
        self._sender = sender

    def search(self, query: str, limit: int) -> "list[Hit]":
        from crabtalk.memory import Entry, Hit

        with known(AGENTS):
            found = self._client.search_memory(self._agent, query, limit=limit, sender=self._sender)
        return [
            Hit(
                Entry(
                    id=place,
                    created_at=seconds_of(hit.created_at),
                    kind=kind_of(hit.kind),
                    name=hit.name,
                    content=hit.content,
                    aliases=tuple(hit.aliases),
                ),
                hit.score,
            )
            for place, hit in enumerate(found.hits)
        ]

    def entry(self, name: str) -> "Entry":
        with known(f"`crabtalk memory list {self._agent}` has the names"):
            page = self._client.list_memory(self._agent, sender=self._sender, name=name)
        return entry_of(page.entries[0])

    def entries(self) -> "list[Entry]":
        found: list[Entry] = []
        after: int | None = None
        while True:
            with known(AGENTS):
                page = self._client.list_memory(self._agent, sender=self._sender, after=after)
            found += map(entry_of, page.entries)
            if not page.HasField("next_after"):
                return found
            after = page.next_after

    def replace(self, entries: "list[Entry]") -> None:
        from crabtalk.client import ServerError
        from crabtalk.protocol import FrameTooLargeError, TooLargeError

        try:
            with known(AGENTS):
                self._client.replace_memory(
                    self._agent, map(wire_entry, entries), sender=self._sender
                )
        except FrameTooLargeError as error:
            raise too_many(f"are more than the {error.limit >> 20} MiB") from None
        except ServerError as error:
            if error.code != TooLargeError.code:
                raise
            raise too_many("have more names and aliases than") from None


def too_many(how: str) -> CommandError:
    return CommandError(
        f"the pages {how} a daemon takes at once; stop it, and load them with --file"
    )


@contextmanager
def known(step: str) -> Iterator[None]:
    """What the daemon does not know, with the step that helps, unless it names those there are."""
    from crabtalk.client import ServerError

    try:
        yield
    except ServerError as error:
        if error.code != 404:
            raise
        has_step = "; there are: " in error.message
        raise CommandError(error.message if has_step else f"{error.message}; {step}") from None


def entry_of(sent: "wire.MemoryEntry") -> "Entry":
    from crabtalk.memory import Entry

    return Entry(
        id=sent.number,
        created_at=sent.created_at,
        kind=kind_of(sent.kind),
        name=sent.name,
        content=sent.content,
        aliases=tuple(sent.aliases),
    )


def wire_entry(entry: "Entry") -> "wire.MemoryEntry":
    from crabtalk.protocol import wire

    return wire.MemoryEntry(
        name=entry.name,
        kind=entry.kind.name.lower(),
        content=entry.content,
        aliases=entry.aliases,
        created_at=entry.created_at,
    )


def kind_of(name: str) -> "Kind":
    from crabtalk.client import UnexpectedReplyError
    from crabtalk.memory import Kind

    try:
        return Kind[name.upper()]
    except KeyError:
        raise UnexpectedReplyError(f"the daemon has an entry of the kind {name!r}") from None
