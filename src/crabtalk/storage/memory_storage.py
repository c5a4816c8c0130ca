"""MemoryStorage: storage that lasts as long as the process. For embedding, and for tests."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from .accepted_messages import (
    AcceptedKey,
    AcceptedMessage,
    find_settled_keys,
    find_used_keys,
    list_pairs,
    make_closing_records,
)
from .agent import Agent, AgentError
from .errors import StorageError
from .log_names import make_log_name
from .record_slices import RecordSlice, WindowRequest
from .records import (
    Archive,
    ConversationMeta,
    EventRecord,
    MarkerRecord,
    MessagePage,
    MessageRecord,
    Pair,
    Record,
    StoredConversation,
    make_archives,
    replay_records,
)

# Assumed size of a record where a limit is in bytes: records have no encoded form here.
RECORD_BYTES = 1024


class MemoryStorage:
    """Gives the same guarantees as the other storages, until the process ends."""

    def __init__(self, *agents: Agent) -> None:
        self._logs: dict[Pair, list[Record]] = {}
        self._agents = {agent.name: agent for agent in agents}
        self._config: dict[str, Any] = {}
        self._closed = False
        # A number per conversation; it differs when a deleted one is created again.
        self._generations: dict[Pair, int] = {}
        self._generation_numbers = itertools.count()
        self._accepted: dict[AcceptedKey, AcceptedMessage] = {}
        self._abandoned: set[AcceptedKey] = set()

    def claim_turn(self, pair: Pair, run: str = "", *, first: bool = False) -> None:
        """None: no other process has access."""

    async def load_and_repair(self, pair: Pair) -> StoredConversation | None:
        entries = [e for e in self._accepted.values() if e.key in self._abandoned]
        if entries := [entry for entry in entries if entry.pair == pair]:
            stored = await self.read_conversation(pair)
            meta = stored.meta if stored is not None else None
            used_keys = await find_used_keys(self, pair, entries)
            records = make_closing_records(pair, meta, entries, used_keys=used_keys)
            await self.append(pair, records, create=meta is None)
            for entry in entries:
                self._settle(entry.key)
        return await self.read_conversation(pair)

    async def read_conversation(self, pair: Pair) -> StoredConversation | None:
        records = self._logs.get(pair)
        return replay_records(records, ConversationMeta(*pair)) if records is not None else None

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        if self._closed:
            raise StorageError("storage is closed")
        if create == (pair in self._logs):
            state = "there already" if create else "gone"
            raise StorageError(f"the conversation of {pair.agent} with {pair.sender} is {state}")
        if create:
            self._generations[pair] = next(self._generation_numbers)
        self._logs.setdefault(pair, []).extend(records)
        for key in find_settled_keys(records):
            self._settle(key)

    def _settle(self, key: AcceptedKey) -> None:
        self._accepted.pop(key, None)
        self._abandoned.discard(key)

    async def read_meta(self, pair: Pair) -> ConversationMeta | None:
        stored = await self.read_conversation(pair)
        return stored.meta if stored is not None else None

    async def read_page(self, pair: Pair, offset: int, limit: int) -> MessagePage | None:
        records = self._logs.get(pair)
        if records is None:
            return None
        messages = [record for record in records if isinstance(record, MessageRecord)]
        total = messages[-1].id + 1 if messages else 0
        page = tuple([m for m in messages if m.id >= offset][:limit])
        next_id = page[-1].id + 1 if page else total
        return MessagePage(page, total, next_id if next_id < total else None)

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

    async def read_records(self, pair: Pair, position: int, limit: int) -> RecordSlice | None:
        if pair not in self._logs:
            return None
        return self._slice_records(pair, position, limit)

    async def list_archives(self, pair: Pair) -> list[Archive] | None:
        records = self._logs.get(pair)
        if records is None:
            return None
        return make_archives([record for record in records if isinstance(record, MarkerRecord)])

    async def list_conversations(
        self, agent: str = "", sender: str = ""
    ) -> list[tuple[str, ConversationMeta]]:
        return [
            (make_log_name(pair), replay_records(records, ConversationMeta(*pair)).meta)
            for pair, records in self._logs.items()
            if (not agent or pair.agent == agent) and (not sender or pair.sender == sender)
        ]

    async def resolve_handle(self, handle: str) -> Pair | None:
        return next((pair for pair in self._logs if make_log_name(pair) == handle), None)

    async def delete_conversation(self, pair: Pair) -> bool:
        return self._logs.pop(pair, None) is not None

    async def accept_message(self, entry: AcceptedMessage) -> None:
        if self._closed:
            raise StorageError("storage is closed")
        self._accepted[entry.key] = entry

    async def withdraw_messages(self, entries: Sequence[AcceptedMessage]) -> None:
        for entry in entries:
            self._settle(entry.key)

    def abandon_messages(self, entries: Sequence[AcceptedMessage]) -> None:
        self._abandoned |= {entry.key for entry in entries} & self._accepted.keys()

    async def list_unsettled(self) -> list[Pair]:
        return list_pairs(e for e in self._accepted.values() if e.key in self._abandoned)

    async def read_versions(self) -> dict[str, int]:
        return {make_log_name(pair): self._version(pair) for pair in self._logs}

    def _version(self, pair: Pair) -> int:
        return self._generations[pair] << 32 | len(self._logs[pair])

    async def read_changes(self, since: str) -> None:
        """None: reading all versions is quick."""

    async def read_new_records(
        self, positions: Sequence[tuple[str, int]], limit: int
    ) -> list[RecordSlice | StorageError | None]:
        return [
            await self._read_new_records(handle, position, limit) for handle, position in positions
        ]

    async def _read_new_records(self, handle: str, position: int, limit: int) -> RecordSlice | None:
        pair = await self.resolve_handle(handle)
        if pair is None:
            return None
        part = self._slice_records(pair, position, limit)
        records = [(at, rec) for at, rec in part.records if not isinstance(rec, EventRecord)]
        return msgspec.structs.replace(part, records=tuple(records))

    def _slice_records(self, pair: Pair, position: int, limit: int) -> RecordSlice:
        records = self._logs[pair]
        start = position if position <= len(records) else 0
        end = min(len(records), start + 1 + limit // RECORD_BYTES)
        placed = [(at, records[at]) for at in range(start, end)]
        origin = replay_records(records[:1], ConversationMeta(*pair)).meta.created_at
        return RecordSlice(
            pair, origin, start, tuple(placed), end, self._version(pair), end < len(records)
        )

    async def read_windows(
        self, requests: Sequence[WindowRequest]
    ) -> list[tuple[MessageRecord, ...]]:
        return [await self._read_window(request) for request in requests]

    async def _read_window(self, request: WindowRequest) -> tuple[MessageRecord, ...]:
        pair = await self.resolve_handle(request.handle)
        first, last = request.id - request.before, request.id + request.after
        window = tuple(
            record
            for record in (self._logs[pair] if pair is not None else ())
            if isinstance(record, MessageRecord) and first <= record.id <= last
        )
        return window if any(record.id == request.id for record in window) else ()

    async def list_agents(self) -> tuple[list[Agent], dict[str, str]]:
        return sorted(self._agents.values(), key=lambda agent: agent.name), {}

    async def load_agent(self, name: str) -> Agent | None:
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

    async def read_config(self) -> dict[str, Any]:
        return copy.deepcopy(self._config)

    async def set_config_value(self, section: str, key: str, value: Any) -> None:
        self._config.setdefault(section, {})[key] = value

    async def close(self) -> None:
        self._closed = True
