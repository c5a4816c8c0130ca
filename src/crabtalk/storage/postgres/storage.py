"""PostgresStorage: a Storage in a database, for any number of daemons at once.

The configuration belongs to one machine and stays in the home. The storage connects when it is
first needed; while the database is unreachable, each use tries again.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

from crabtalk import __version__
from crabtalk.storage.accepted_messages import (
    INTERRUPTED,
    AcceptedKey,
    AcceptedMessage,
    current_time,
    find_closed_runs,
    find_settled_keys,
    find_used_keys,
    make_closing_records,
)
from crabtalk.storage.agent import Agent
from crabtalk.storage.config_document import ConfigDocument
from crabtalk.storage.errors import FencedError, StorageError
from crabtalk.storage.file_storage import PAGE_BYTES, run_in_thread
from crabtalk.storage.log_names import is_handle, make_log_name
from crabtalk.storage.record_slices import LogChanges, RecordSlice, WindowRequest
from crabtalk.storage.records import (
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

from . import queries
from .agent_table import AgentTable
from .column_encoding import decode_column, encode_column, make_pair_key
from .database import MAX_BIGINT, POOL_SIZE, STATEMENT_SECONDS, PostgresDatabase
from .mailbox import Mailbox
from .membership import Membership
from .row_conversion import (
    decode_accepted,
    decode_messages,
    decode_records,
    encode_accepted,
    read_meta_row,
    read_pair_row,
    to_append_arguments,
)
from .schema import migrate_schema
from .subscription_table import SubscriptionTable
from .turn_claims import PostgresTurnClaim, TurnClaims, TurnLease

LEASE_SECONDS = 10.0
# Why a run was interrupted.
DEAD_DAEMON_REASON = "the daemon that ran it was not heard of any more"
FAILED_WRITE_REASON = "the database could not be reached"
# Handles to try for a conversation: other conversations may already have the first ones.
HANDLE_ATTEMPTS = 8
# Conversations with accepted messages of dead daemons to recover at once.
MAX_UNSETTLED = 1000


class RunHolder(NamedTuple):
    """A daemon and its run, running or queued."""

    daemon: UUID
    run: str
    is_in_flight: bool


class PostgresStorage:
    """One per daemon. `name` identifies it to people; `lease` is its lease time in seconds."""

    def __init__(
        self,
        home: Path,
        url: str,
        *,
        lease: float = LEASE_SECONDS,
        pool: int = POOL_SIZE,
        statement_timeout: float = STATEMENT_SECONDS,
        name: str = "",
    ) -> None:
        self.id: UUID = uuid4()
        self.database = PostgresDatabase(url, pool=pool, statement_seconds=statement_timeout)
        channel = self._channel = get_channel(url)
        self._config = ConfigDocument(home / "config.toml")
        self.agent_table = AgentTable(self.database, channel)
        self.turn_claims = TurnClaims(
            self.database, self.id, channel, lease, ensure_open=self.open, close_run=self._close_run
        )
        self.mailbox = Mailbox(self.database, self.id, channel, self._on_notice)
        self.membership = Membership(
            self.database,
            self.turn_claims,
            name or f"{socket.gethostname()}:{home}",
            __version__,
            lease,
        )
        self.subscriptions = SubscriptionTable(self.database, channel)
        # Called for a run of another daemon that this one has closed.
        self.on_interrupted: Callable[[Pair, str], None] = lambda pair, run: None
        # Keys of turns taken for a single write; no other write may use them.
        self._single_write_keys: set[str] = set()
        self._turn_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._accepted: set[AcceptedKey] = set()  # messages of this daemon's runs
        self._abandoned: dict[str, Pair] = {}  # runs of this daemon that were given up, by id
        self._open_lock = asyncio.Lock()
        self._is_open = False
        self._closed = False

    async def open(self) -> None:
        """Migrate the schema, join the fleet, and listen. Raises StorageError; the next call tries
        again."""
        if self._is_open:
            return
        async with self._open_lock:
            if self._closed:
                raise StorageError("storage is closed")
            if not self._is_open:
                await migrate_schema(self.database)
                await self.membership.join()
                self.mailbox.start()
                self._is_open = True

    def _on_notice(self, notice: str) -> None:
        word, _, rest = notice.partition(" ")
        if word == "turn":
            self.turn_claims.wake(rest)
        elif word == "revision":
            kind, _, number = rest.partition(" ")
            if number.isdecimal():
                self.membership.note_revision(kind, int(number))

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    def claim_turn(self, pair: Pair, run: str = "", *, first: bool = False) -> PostgresTurnClaim:
        return self.turn_claims.claim_turn(pair, run, first=first)

    async def find_holders(self, pair: Pair, *, run: str = "", key: str = "") -> list[RunHolder]:
        """Other daemons that may have a run; the owner of the turn comes first."""
        await self.open()
        rows = await self.database.fetch(
            queries.HOLDERS,
            make_pair_key(pair),
            self.id,
            run or None,
            encode_column(key) if key else None,
        )
        holders = [RunHolder(row["daemon"], row["run"], row["is_in_flight"]) for row in rows]
        return sorted(holders, key=lambda holder: not holder.is_in_flight)

    async def find_owner(self, pair: Pair) -> UUID | None:
        """The other daemon that owns the turn, if any."""
        await self.open()
        row = await self.database.fetch_row(queries.OWNER, make_pair_key(pair), self.id)
        return row["owner"] if row is not None else None

    @asynccontextmanager
    async def _hold_turn(self, pair: Pair) -> AsyncIterator[TurnLease]:
        """The lease that is held, or one taken for this write only."""
        key = make_pair_key(pair)
        lease = self.turn_claims.get_held(pair)
        if lease is not None and key not in self._single_write_keys:
            yield lease
            return
        lock = self._turn_locks.setdefault(key, asyncio.Lock())
        async with lock:
            claim = self.claim_turn(pair)
            self._single_write_keys.add(key)
            try:
                await claim.acquire()
                yield claim.held_lease
            finally:
                self._single_write_keys.discard(key)
                claim.release()

    async def _close_run(self, lease: TurnLease, run: str) -> None:
        """Store the end of a run of a daemon that died, or of our own after a failed write, unless
        its end is stored already."""
        entries = await self._load_orphans(lease.pair)
        end = await self._build_end_record(lease, run)
        if entries:
            await self._settle(lease, entries, end)
        elif end is not None:
            await self._append(lease, [end], create=False)
        if end is not None and not lease.has_failed_writes:
            self.on_interrupted(lease.pair, run)

    async def _build_end_record(self, lease: TurnLease, run: str) -> EventRecord | None:
        """The record that closes a run; None if it is closed, or nothing of it was stored."""
        rows = await self.database.fetch(queries.LAST_EVENT, lease.key, lease.fence)
        if not rows or not run:
            return None
        if run in find_closed_runs(decode_records([rows[0]["body"]] if rows[0]["body"] else [])):
            return None
        error = FAILED_WRITE_REASON if lease.has_failed_writes else DEAD_DAEMON_REASON
        data = {"agent": lease.pair.agent, "stop_reason": INTERRUPTED, "error": error}
        return EventRecord("done", current_time(), run, data)

    # ── Accepted messages ───────────────────────────────────────────────────────────────────

    async def accept_message(self, entry: AcceptedMessage) -> None:
        await self.open()
        agent, sender = entry.pair
        values = (
            entry.run,
            entry.steer,
            make_pair_key(entry.pair),
            encode_column(agent),
            encode_column(sender),
        )
        self._accepted.add(entry.key)
        try:
            message_key = encode_column(entry.message_key) if entry.message_key else None
            body = encode_accepted(entry)
            await self.database.change(queries.ACCEPT, *values, self.id, body, message_key)
        except BaseException:
            self._accepted.discard(entry.key)
            raise

    async def withdraw_messages(self, entries: Sequence[AcceptedMessage]) -> None:
        await self.open()
        runs, steers = [entry.run for entry in entries], [entry.steer for entry in entries]
        await self.database.change(queries.WITHDRAW, runs, steers)
        self._accepted -= {entry.key for entry in entries}

    def abandon_messages(self, entries: Sequence[AcceptedMessage]) -> None:
        for entry in entries:
            self._accepted.discard(entry.key)
            self._abandoned[entry.run] = entry.pair

    async def list_unsettled(self) -> list[Pair]:
        await self.open()
        rows = await self.database.fetch(queries.UNSETTLED, list(self._abandoned), MAX_UNSETTLED)
        return [read_pair_row(row) for row in rows]

    async def _load_orphans(self, pair: Pair) -> list[AcceptedMessage]:
        """Accepted messages of a conversation that no run will append any more.

        A suspended daemon counts as dead, also to itself, until its next heartbeat; so messages of
        its own runs are excluded here.
        """
        runs = [run for run, run_pair in self._abandoned.items() if run_pair == pair]
        rows = await self.database.fetch(queries.ORPHANS, make_pair_key(pair), runs)
        entries = decode_accepted(row["body"] for row in rows)
        return [entry for entry in entries if entry.key not in self._accepted]

    async def _settle(
        self, lease: TurnLease, entries: Sequence[AcceptedMessage], end: EventRecord | None = None
    ) -> None:
        """Append the messages with their closing records, in one transaction under the lease."""
        row = await self.database.fetch_row(queries.CONVERSATION, lease.key)
        late_events = (
            await self.database.fetch(queries.LATE_EVENTS, row["id"]) if row is not None else []
        )
        meta = read_meta_row(row) if row is not None else None
        closed = find_closed_runs(decode_records(event["body"] for event in late_events))
        used_keys = await find_used_keys(self, lease.pair, entries)
        records = make_closing_records(
            lease.pair, meta, entries, used_keys=used_keys, closed=closed, end=end
        )
        keys = [entry.key for entry in entries]
        await self._append(lease, records, create=meta is None, settling=keys)
        for entry in entries:
            self._abandoned.pop(entry.run, None)

    # ── Conversations ───────────────────────────────────────────────────────────────────────

    async def load_and_repair(self, pair: Pair) -> StoredConversation | None:
        await self.open()
        # Concurrently: orphans are rare, so looking for them must not add a round trip.
        entries, stored = await asyncio.gather(
            self._load_orphans(pair), self.read_conversation(pair)
        )
        if not entries:
            return stored
        async with self._hold_turn(pair) as lease:
            await self._settle(lease, entries)
        return await self.read_conversation(pair)

    async def read_conversation(self, pair: Pair) -> StoredConversation | None:
        await self.open()
        row = await self.database.fetch_row(queries.CONVERSATION, make_pair_key(pair))
        if row is None:
            return None
        entries = await self.database.fetch(queries.SINCE_MARKER, row["id"], row["marker_seq"] or 1)
        bodies = [entry["body"] for entry in entries]
        size = sum(map(len, bodies))
        if size < PAGE_BYTES:
            return replay_records(decode_records(bodies), read_meta_row(row), size)
        return await asyncio.to_thread(
            lambda: replay_records(decode_records(bodies), read_meta_row(row), size)
        )

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        await self.open()
        async with self._hold_turn(pair) as lease:
            try:
                await self._append(lease, records, create=create)
            except BaseException:
                lease.has_failed_writes = True
                raise

    async def _append(
        self,
        lease: TurnLease,
        records: Sequence[Record],
        *,
        create: bool,
        settling: Sequence[AcceptedKey] = (),
    ) -> None:
        agent, sender = lease.pair
        keys = settling or [key for key in find_settled_keys(records) if key in self._accepted]
        settled = ([key.run for key in keys], [key.steer for key in keys])
        values = (*to_append_arguments(records), *settled)
        for attempt in range(1, HANDLE_ATTEMPTS + 1):
            row = (
                await self.database.change(
                    queries.APPEND,
                    lease.key,
                    lease.fence,
                    make_log_name(lease.pair, attempt),
                    encode_column(agent),
                    encode_column(sender),
                    create,
                    *values,
                )
            )[0]
            if row["refusal"] != "taken":
                break
        if row["refusal"] == "fenced":
            raise FencedError(
                f"the turn of {agent[:80]} with {sender[:80]} was taken over by another daemon "
                "while this one was away; nothing of it is kept here: say it again"
            )
        if row["refusal"] == "closed":
            raise FencedError(
                f"another daemon has closed this message of {agent[:80]} with {sender[:80]} as "
                "interrupted, since this one was away; say it again"
            )
        if row["refusal"] == "used":
            raise StorageError(
                f"the conversation of {agent[:80]} with {sender[:80]} has a message with this key "
                "already; attach to its run, or say it with another key"
            )
        if row["refusal"]:
            state = "gone" if row["refusal"] == "gone" else "there already"
            raise StorageError(f"the conversation of {agent[:80]} with {sender[:80]} is {state}")
        if not settling:
            self._accepted.difference_update(keys)
        lease.version = (row["conversation"], row["last_seq"])

    async def read_meta(self, pair: Pair) -> ConversationMeta | None:
        await self.open()
        row = await self.database.fetch_row(queries.META, make_pair_key(pair))
        if row is None:
            return None
        marker = decode_records([row["marker"]] if row["marker"] else [])
        summary = "".join(m.summary for m in marker if isinstance(m, MarkerRecord))
        return read_meta_row(row, summary)

    async def read_page(self, pair: Pair, offset: int, limit: int) -> MessagePage | None:
        await self.open()
        row = await self.database.fetch_row(queries.CONVERSATION, make_pair_key(pair))
        if row is None:
            return None
        offset = min(offset, MAX_BIGINT)
        entries = await self.database.fetch(queries.PAGE, row["id"], offset, limit, PAGE_BYTES)
        messages = decode_messages(entry["body"] for entry in entries)
        total = row["message_count"]
        next_id = messages[-1].id + 1 if messages else total
        return MessagePage(messages, total, next_id if next_id < total else None)

    async def find_run(self, pair: Pair, *, run: str = "", key: str = "") -> list[Record]:
        await self.open()
        if not run and not key:
            return []
        statement, value = (queries.RUN_OF_KEY, key) if key else (queries.RUN, run)
        entries = await self.database.fetch(statement, make_pair_key(pair), encode_column(value))
        return decode_records(entry["body"] for entry in entries)

    async def list_archives(self, pair: Pair) -> list[Archive] | None:
        await self.open()
        row = await self.database.fetch_row(queries.CONVERSATION, make_pair_key(pair))
        if row is None:
            return None
        entries = await self.database.fetch(queries.MARKERS, row["id"])
        markers = decode_records(entry["body"] for entry in entries)
        return make_archives([marker for marker in markers if isinstance(marker, MarkerRecord)])

    async def list_conversations(
        self, agent: str = "", sender: str = ""
    ) -> list[tuple[str, ConversationMeta]]:
        await self.open()
        statement, values = queries.build_listing_query(encode_column(agent), encode_column(sender))
        return [
            (row["handle"], read_meta_row(row))
            for row in await self.database.fetch(statement, *values)
        ]

    async def resolve_handle(self, handle: str) -> Pair | None:
        if not is_handle(handle):
            return None
        await self.open()
        row = await self.database.fetch_row(queries.OF_HANDLE, handle)
        return read_pair_row(row) if row is not None else None

    async def delete_conversation(self, pair: Pair) -> bool:
        await self.open()
        async with self._hold_turn(pair) as lease:
            rows = await self.database.change(queries.DELETE, lease.key, lease.fence)
            if not rows[0]["is_held"]:
                raise FencedError("another daemon has this conversation's turn by now; try again")
            lease.version = None
            return bool(rows[0]["is_gone"])

    # ── Following the logs ──────────────────────────────────────────────────────────────────

    async def read_versions(self) -> dict[str, int]:
        await self.open()
        rows = await self.database.fetch(queries.VERSIONS)
        return {row["handle"]: compute_version(row) for row in rows}

    async def read_changes(self, since: str) -> LogChanges | None:
        await self.open()
        horizon, _, at = since.partition(":")
        row = (await self.database.fetch(queries.NOW))[0]
        cursor = f"{row['horizon']}:{row['at']}"
        if not since or row["at"] - int(at or 0) > queries.REMEMBERED_SECONDS:
            return LogChanges(cursor, None, ())
        changed = await self.database.fetch(queries.CHANGED, horizon)
        deleted = await self.database.fetch(queries.GONE, horizon)
        return LogChanges(
            cursor,
            {row["handle"]: compute_version(row) for row in changed},
            tuple(row["handle"] for row in deleted),
        )

    async def read_new_records(
        self, positions: Sequence[tuple[str, int]], limit: int
    ) -> list[RecordSlice | StorageError | None]:
        slices: list[RecordSlice | StorageError | None] = []
        for handle, position in positions:
            try:
                slices.append(await self._follow_one(handle, position, limit))
            except StorageError as error:
                slices.append(error)
        return slices

    async def _follow_one(self, handle: str, position: int, limit: int) -> RecordSlice | None:
        if not is_handle(handle):
            return None
        await self.open()
        row = await self.database.fetch_row(queries.OF_HANDLE, handle)
        return await self._read_from(queries.FOLLOW, row, position, limit)

    async def read_records(self, pair: Pair, position: int, limit: int) -> RecordSlice | None:
        await self.open()
        row = await self.database.fetch_row(queries.OF_PAIR, make_pair_key(pair))
        return await self._read_from(queries.READ_RECORDS, row, position, limit)

    async def _read_from(
        self, statement: str, row: Any, position: int, limit: int
    ) -> RecordSlice | None:
        """The records after a position in the conversation of this row."""
        if row is None:
            return None
        last = row["last_seq"]
        start = position if 0 <= position <= last else 0
        entries = await self.database.fetch(statement, row["id"], start, last, limit)
        position_after = entries[-1]["seq"] if entries else start
        placed_records = tuple(
            (entry["seq"] - 1, record)
            for entry in entries
            if entry["body"] is not None
            for record in decode_records([entry["body"]])
        )
        return RecordSlice(
            read_pair_row(row),
            decode_column(row["created_at"]),
            start,
            placed_records,
            position_after,
            compute_version(row),
            position_after < last,
        )

    async def read_windows(
        self, requests: Sequence[WindowRequest]
    ) -> list[tuple[MessageRecord, ...]]:
        await self.open()
        rows = await self.database.fetch(
            queries.WINDOWS,
            [encode_column(request.handle) for request in requests],
            [request.id for request in requests],
            [request.before for request in requests],
            [request.after for request in requests],
        )
        bodies: list[list[str]] = [[] for _ in requests]
        for row in rows:
            bodies[row["place"] - 1].append(row["body"])
        windows = [decode_messages(texts) for texts in bodies]
        return [
            window if any(message.id == request.id for message in window) else ()
            for request, window in zip(requests, windows, strict=True)
        ]

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    async def list_agents(self) -> tuple[list[Agent], dict[str, str]]:
        await self.open()
        return await self.agent_table.load_all()

    async def load_agent(self, name: str) -> Agent | None:
        await self.open()
        return await self.agent_table.load(name)

    async def save_agent(self, agent: Agent) -> None:
        await self.open()
        await self.agent_table.save(agent)

    async def delete_agent(self, name: str) -> bool:
        await self.open()
        return await self.agent_table.delete(name)

    async def rename_agent(self, old: str, new: str) -> None:
        await self.open()
        await self.agent_table.rename(old, new)

    # ── Interests ───────────────────────────────────────────────────────────────────────────

    async def publish_interests(self, interests: Collection[tuple[str, str]]) -> None:
        """Store the agents and senders that this daemon's clients subscribed to."""
        await self.open()
        async with self.database.transaction() as connection:
            await connection.execute("DELETE FROM interests WHERE daemon = $1", self.id)
            await connection.executemany(
                queries.INSERT_INTEREST,
                [
                    (self.id, encode_column(agent), encode_column(sender))
                    for agent, sender in interests
                ],
            )
            await connection.execute(queries.NOTIFY_INTERESTS, self._channel)

    async def load_interests(self) -> list[tuple[UUID, str, str]]:
        """The agents and senders that clients of other daemons subscribed to, with the daemon."""
        await self.open()
        return [
            (row["daemon"], decode_column(row["agent"]), decode_column(row["sender"]))
            for row in await self.database.fetch(queries.INTERESTS, self.id)
        ]

    # ── Configuration ───────────────────────────────────────────────────────────────────────

    async def read_config(self) -> dict[str, Any]:
        return await run_in_thread(self._config.read)

    async def set_config_value(self, section: str, key: str, value: Any) -> None:
        await run_in_thread(self._config.set_value, section, key, value)

    async def close(self) -> None:
        self._closed = True
        await self.turn_claims.close()
        await self.membership.close()
        await self.mailbox.close()
        await self.database.close()


def compute_version(row: Any) -> int:
    return hash((row["id"], row["last_seq"]))


def get_channel(url: str) -> str:
    """The notification channel of a fleet; fleets in other schemas have other channels."""
    from urllib.parse import parse_qs, urlsplit

    schema = parse_qs(urlsplit(url).query).get("search_path", ["public"])[0]
    return f"crabtalk {schema}"[:63]
