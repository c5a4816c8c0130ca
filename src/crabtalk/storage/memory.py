"""MemoryStorage: Storage that forgets when the process ends. For embedding, and for tests."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from .acceptance import (
    Accepted,
    AcceptedKey,
    closing_records,
    find_used_keys,
    pairs_of,
    settled_keys,
)
from .agent import Agent, AgentError
from .errors import StorageError
from .following import Followed, Place
from .names import log_name
from .records import (
    Archive,
    EventRecord,
    MarkerRecord,
    MessageRecord,
    Meta,
    Page,
    Pair,
    Record,
    Stored,
    archives,
    replay,
)

# What a record is taken to weigh where bytes are asked for: nothing here has any.
RECORD = 1024


class MemoryStorage:
    """The same promises as the others, for as long as it lives."""

    def __init__(self, *agents: Agent) -> None:
        self._logs: dict[Pair, list[Record]] = {}
        self._agents = {agent.name: agent for agent in agents}
        self._config: dict[str, Any] = {}
        self._closed = False
        # Which one of all it is, also when another went by its name before.
        self._begun: dict[Pair, int] = {}
        self._beginnings = itertools.count()
        self._accepted: dict[AcceptedKey, Accepted] = {}
        self._abandoned: set[AcceptedKey] = set()

    def claim(self, pair: Pair, run: str = "", *, first: bool = False) -> None:
        """Nobody else can have a turn."""

    async def load(self, pair: Pair) -> Stored | None:
        entries = [e for e in self._accepted.values() if e.key in self._abandoned]
        if entries := [entry for entry in entries if entry.pair == pair]:
            stored = await self.read(pair)
            meta = stored.meta if stored is not None else None
            used_keys = await find_used_keys(self, pair, entries)
            records = closing_records(pair, meta, entries, used_keys=used_keys)
            await self.append(pair, records, create=meta is None)
            for entry in entries:
                self._settle(entry.key)
        return await self.read(pair)

    async def read(self, pair: Pair) -> Stored | None:
        records = self._logs.get(pair)
        return replay(records, Meta(*pair)) if records is not None else None

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        if self._closed:
            raise StorageError("storage is closed")
        if create == (pair in self._logs):
            there = "there already" if create else "gone"
            raise StorageError(f"the conversation of {pair.agent} with {pair.sender} is {there}")
        if create:
            self._begun[pair] = next(self._beginnings)
        self._logs.setdefault(pair, []).extend(records)
        for key in settled_keys(records):
            self._settle(key)

    def _settle(self, key: AcceptedKey) -> None:
        self._accepted.pop(key, None)
        self._abandoned.discard(key)

    async def meta(self, pair: Pair) -> Meta | None:
        stored = await self.read(pair)
        return stored.meta if stored is not None else None

    async def page(self, pair: Pair, offset: int, limit: int) -> Page | None:
        records = self._logs.get(pair)
        if records is None:
            return None
        messages = [record for record in records if isinstance(record, MessageRecord)]
        total = messages[-1].id + 1 if messages else 0
        found = tuple([m for m in messages if m.id >= offset][:limit])
        following = found[-1].id + 1 if found else total
        return Page(found, total, following if following < total else None)

    async def find_run(self, pair: Pair, *, run: str = "", key: str = "") -> list[Record]:
        records = self._logs.get(pair, [])
        if key:
            run = next(
                (r.run for r in records if isinstance(r, MessageRecord) and r.key == key), ""
            )
        return [
            record
            for record in records
            if run and isinstance(record, MessageRecord | EventRecord) and record.run == run
        ]

    async def read_records(self, pair: Pair, position: int, limit: int) -> Followed | None:
        if pair not in self._logs:
            return None
        return self._read(pair, position, limit)

    async def archives(self, pair: Pair) -> list[Archive] | None:
        records = self._logs.get(pair)
        if records is None:
            return None
        return archives([record for record in records if isinstance(record, MarkerRecord)])

    async def conversations(self, agent: str = "", sender: str = "") -> list[tuple[str, Meta]]:
        return [
            (log_name(pair), replay(records, Meta(*pair)).meta)
            for pair, records in self._logs.items()
            if (not agent or pair.agent == agent) and (not sender or pair.sender == sender)
        ]

    async def resolve(self, handle: str) -> Pair | None:
        return next((pair for pair in self._logs if log_name(pair) == handle), None)

    async def delete(self, pair: Pair) -> bool:
        return self._logs.pop(pair, None) is not None

    async def accept(self, entry: Accepted) -> None:
        if self._closed:
            raise StorageError("storage is closed")
        self._accepted[entry.key] = entry

    async def withdraw(self, entries: Sequence[Accepted]) -> None:
        for entry in entries:
            self._settle(entry.key)

    def abandon(self, entries: Sequence[Accepted]) -> None:
        self._abandoned |= {entry.key for entry in entries} & self._accepted.keys()

    async def unsettled(self) -> list[Pair]:
        return pairs_of(e for e in self._accepted.values() if e.key in self._abandoned)

    async def versions(self) -> dict[str, int]:
        return {log_name(pair): self._version(pair) for pair in self._logs}

    def _version(self, pair: Pair) -> int:
        return self._begun[pair] << 32 | len(self._logs[pair])

    async def changes(self, since: str) -> None:
        """It is quick to look at all."""

    async def follow(
        self, positions: Sequence[tuple[str, int]], limit: int
    ) -> list[Followed | StorageError | None]:
        return [await self._followed(handle, position, limit) for handle, position in positions]

    async def _followed(self, handle: str, position: int, limit: int) -> Followed | None:
        pair = await self.resolve(handle)
        if pair is None:
            return None
        found = self._read(pair, position, limit)
        spoken = [(at, one) for at, one in found.records if not isinstance(one, EventRecord)]
        return msgspec.structs.replace(found, records=tuple(spoken))

    def _read(self, pair: Pair, position: int, limit: int) -> Followed:
        records = self._logs[pair]
        start = position if position <= len(records) else 0
        end = min(len(records), start + 1 + limit // RECORD)
        placed = [(at, records[at]) for at in range(start, end)]
        origin = replay(records[:1], Meta(*pair)).meta.created_at
        return Followed(
            pair, origin, start, tuple(placed), end, self._version(pair), end < len(records)
        )

    async def windows(self, places: Sequence[Place]) -> list[tuple[MessageRecord, ...]]:
        return [await self._window(place) for place in places]

    async def _window(self, place: Place) -> tuple[MessageRecord, ...]:
        pair = await self.resolve(place.handle)
        first, last = place.id - place.before, place.id + place.after
        found = tuple(
            record
            for record in (self._logs[pair] if pair is not None else ())
            if isinstance(record, MessageRecord) and first <= record.id <= last
        )
        return found if any(record.id == place.id for record in found) else ()

    async def agents(self) -> tuple[list[Agent], dict[str, str]]:
        return sorted(self._agents.values(), key=lambda agent: agent.name), {}

    async def agent(self, name: str) -> Agent | None:
        return self._agents.get(name)

    async def save_agent(self, agent: Agent) -> None:
        self._agents[agent.name] = agent

    async def delete_agent(self, name: str) -> bool:
        return self._agents.pop(name, None) is not None

    async def rename_agent(self, old: str, new: str) -> None:
        if new in self._agents:
            raise AgentError(f"an agent called {new!r} is there already; choose another name")
        if old not in self._agents:
            raise AgentError(f"no agent is called {old!r}")
        self._agents[new] = msgspec.structs.replace(self._agents.pop(old), name=new)

    async def config(self) -> dict[str, Any]:
        return copy.deepcopy(self._config)

    async def configure(self, section: str, key: str, value: Any) -> None:
        self._config.setdefault(section, {})[key] = value

    async def close(self) -> None:
        self._closed = True
