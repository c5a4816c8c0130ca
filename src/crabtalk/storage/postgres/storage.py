"""PostgresStorage: a database as Storage, for any number of daemons at once.

What belongs to one machine, its configuration, stays in the home. Nothing is connected before it
is needed, and a database that is away is looked for again by whoever needs it next.
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
from crabtalk.storage.acceptance import (
    INTERRUPTED,
    Accepted,
    AcceptedKey,
    closed_runs,
    closing_records,
    current_time,
    find_used_keys,
    settled_keys,
)
from crabtalk.storage.agent import Agent
from crabtalk.storage.config_document import ConfigDocument
from crabtalk.storage.errors import FencedError, StorageError
from crabtalk.storage.files import PAGE_BYTES, in_thread
from crabtalk.storage.following import Changes, Followed, Place
from crabtalk.storage.names import is_handle, log_name
from crabtalk.storage.records import (
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

from . import queries
from .agents import AgentTable
from .claims import Claim, Claims, Lease
from .database import LARGEST, POOL, STATEMENT_SECONDS, Database
from .mail import Mail
from .members import Members
from .pair import column, key_of, uncolumn
from .rows import body_of, entries_of, messages_of, meta_of, pair_of, records_of, values_of
from .schema import migrate
from .subscriptions import SubscriptionTable

LEASE_SECONDS = 10.0
# Why a run was interrupted.
DEAD = "the daemon that ran it was not heard of any more"
TORN = "the database could not be reached"
# How many handles are tried for a conversation: others may have those that come first.
ATTEMPTS = 8
# Conversations with accepted texts of dead daemons that are looked after in one go.
RECOVERED = 1000


class Holder(NamedTuple):
    """A daemon, and the run it has in flight or in line."""

    daemon: UUID
    run: str
    is_in_flight: bool


class PostgresStorage:
    """One per daemon; `name` is what the others call it. `lease` is how long one may be silent."""

    def __init__(
        self,
        home: Path,
        url: str,
        *,
        lease: float = LEASE_SECONDS,
        pool: int = POOL,
        statement_timeout: float = STATEMENT_SECONDS,
        name: str = "",
    ) -> None:
        self.id: UUID = uuid4()
        self.database = Database(url, pool=pool, statement_seconds=statement_timeout)
        channel = self._channel = channel_of(url)
        self._config = ConfigDocument(home / "config.toml")
        self.agent_table = AgentTable(self.database, channel)
        self.claims = Claims(
            self.database, self.id, channel, lease, opening=self.open, closing=self._close_run
        )
        self.mail = Mail(self.database, self.id, channel, self._heard)
        self.members = Members(
            self.database, self.claims, name or f"{socket.gethostname()}:{home}", __version__, lease
        )
        self.subscriptions = SubscriptionTable(self.database, channel)
        # Is told of a run that another daemon began, and that this one closed on the record.
        self.interrupted: Callable[[Pair, str], None] = lambda pair, run: None
        # Turns that are taken for one write, and given back after it: nobody else may use them.
        self._brief: set[str] = set()
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._accepted: set[AcceptedKey] = set()  # of runs of this daemon
        self._abandoned: dict[str, Pair] = {}  # runs of this daemon that have given up, by id
        self._opening = asyncio.Lock()
        self._is_open = False
        self._closed = False

    async def open(self) -> None:
        """Migrates the schema, joins the others, listens. Raises StorageError; asked again, it
        tries again."""
        if self._is_open:
            return
        async with self._opening:
            if self._closed:
                raise StorageError("storage is closed")
            if not self._is_open:
                await migrate(self.database)
                await self.members.join()
                self.mail.start()
                self._is_open = True

    def _heard(self, notice: str) -> None:
        word, _, rest = notice.partition(" ")
        if word == "turn":
            self.claims.wake(rest)
        elif word == "revision":
            what, _, number = rest.partition(" ")
            if number.isdecimal():
                self.members.heard(what, int(number))

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    def claim(self, pair: Pair, run: str = "", *, first: bool = False) -> Claim:
        return self.claims.claim(pair, run, first=first)

    async def find_holders(self, pair: Pair, *, run: str = "", key: str = "") -> list[Holder]:
        """Other daemons that may have a run: who has the turn comes first."""
        await self.open()
        rows = await self.database.fetch(
            queries.HOLDERS, key_of(pair), self.id, run or None, column(key) if key else None
        )
        found = [Holder(row["daemon"], row["run"], row["is_in_flight"]) for row in rows]
        return sorted(found, key=lambda holder: not holder.is_in_flight)

    async def owner(self, pair: Pair) -> UUID | None:
        """Which other daemon has the turn."""
        await self.open()
        row = await self.database.fetch_row(queries.OWNER, key_of(pair), self.id)
        return row["owner"] if row is not None else None

    @asynccontextmanager
    async def _turn(self, pair: Pair) -> AsyncIterator[Lease]:
        """The turn that is held, or one for this alone."""
        key = key_of(pair)
        lease = self.claims.held(pair)
        if lease is not None and key not in self._brief:
            yield lease
            return
        alone = self._lines.setdefault(key, asyncio.Lock())
        async with alone:
            claim = self.claim(pair)
            self._brief.add(key)
            try:
                await claim.reach()
                yield claim.held
            finally:
                self._brief.discard(key)
                claim.leave()

    async def _close_run(self, lease: Lease, run: str) -> None:
        """The run of a daemon that died, or of ours when we could not keep all of it, ends on the
        record, unless it had ended there already."""
        entries = await self._orphans(lease.pair)
        end = await self._end_of(lease, run)
        if entries:
            await self._settle(lease, entries, end)
        elif end is not None:
            await self._append(lease, [end], create=False)
        if end is not None and not lease.is_torn:
            self.interrupted(lease.pair, run)

    async def _end_of(self, lease: Lease, run: str) -> EventRecord | None:
        """The record that closes a run, unless it was closed, or nothing of it was kept."""
        rows = await self.database.fetch(queries.LAST_EVENT, lease.key, lease.fence)
        if not rows or not run:
            return None
        if run in closed_runs(records_of([rows[0]["body"]] if rows[0]["body"] else [])):
            return None
        error = TORN if lease.is_torn else DEAD
        data = {"agent": lease.pair.agent, "stop_reason": INTERRUPTED, "error": error}
        return EventRecord("done", current_time(), run, data)

    # ── Accepted texts ──────────────────────────────────────────────────────────────────────

    async def accept(self, entry: Accepted) -> None:
        await self.open()
        agent, sender = entry.pair
        values = (entry.run, entry.steer, key_of(entry.pair), column(agent), column(sender))
        self._accepted.add(entry.key)
        try:
            message_key = column(entry.message_key) if entry.message_key else None
            body = body_of(entry)
            await self.database.change(queries.ACCEPT, *values, self.id, body, message_key)
        except BaseException:
            self._accepted.discard(entry.key)
            raise

    async def withdraw(self, entries: Sequence[Accepted]) -> None:
        await self.open()
        runs, steers = [entry.run for entry in entries], [entry.steer for entry in entries]
        await self.database.change(queries.WITHDRAW, runs, steers)
        self._accepted -= {entry.key for entry in entries}

    def abandon(self, entries: Sequence[Accepted]) -> None:
        for entry in entries:
            self._accepted.discard(entry.key)
            self._abandoned[entry.run] = entry.pair

    async def unsettled(self) -> list[Pair]:
        await self.open()
        rows = await self.database.fetch(queries.UNSETTLED, list(self._abandoned), RECOVERED)
        return [pair_of(row) for row in rows]

    async def _orphans(self, pair: Pair) -> list[Accepted]:
        """Accepted texts of a conversation that no run will append any more.

        A daemon that slept is taken for dead, by itself too, until it is heard of again: what its
        own runs will append is no orphan to it.
        """
        runs = [run for run, of in self._abandoned.items() if of == pair]
        rows = await self.database.fetch(queries.ORPHANS, key_of(pair), runs)
        entries = entries_of(row["body"] for row in rows)
        return [entry for entry in entries if entry.key not in self._accepted]

    async def _settle(
        self, lease: Lease, entries: Sequence[Accepted], end: EventRecord | None = None
    ) -> None:
        """Closes them on the record: by whoever has the turn, in one transaction."""
        row = await self.database.fetch_row(queries.CONVERSATION, lease.key)
        late = await self.database.fetch(queries.LATE_EVENTS, row["id"]) if row is not None else []
        meta = meta_of(row) if row is not None else None
        closed = closed_runs(records_of(event["body"] for event in late))
        used_keys = await find_used_keys(self, lease.pair, entries)
        records = closing_records(
            lease.pair, meta, entries, used_keys=used_keys, closed=closed, end=end
        )
        keys = [entry.key for entry in entries]
        await self._append(lease, records, create=meta is None, settling=keys)
        for entry in entries:
            self._abandoned.pop(entry.run, None)

    # ── Conversations ───────────────────────────────────────────────────────────────────────

    async def load(self, pair: Pair) -> Stored | None:
        await self.open()
        # At once: as good as always there are none, and nobody should wait for that.
        entries, stored = await asyncio.gather(self._orphans(pair), self.read(pair))
        if not entries:
            return stored
        async with self._turn(pair) as lease:
            await self._settle(lease, entries)
        return await self.read(pair)

    async def read(self, pair: Pair) -> Stored | None:
        await self.open()
        row = await self.database.fetch_row(queries.CONVERSATION, key_of(pair))
        if row is None:
            return None
        entries = await self.database.fetch(queries.SINCE_MARKER, row["id"], row["marker_seq"] or 1)
        bodies = [entry["body"] for entry in entries]
        size = sum(map(len, bodies))
        if size < PAGE_BYTES:
            return replay(records_of(bodies), meta_of(row), size)
        return await asyncio.to_thread(lambda: replay(records_of(bodies), meta_of(row), size))

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        await self.open()
        async with self._turn(pair) as lease:
            try:
                await self._append(lease, records, create=create)
            except BaseException:
                lease.is_torn = True
                raise

    async def _append(
        self,
        lease: Lease,
        records: Sequence[Record],
        *,
        create: bool,
        settling: Sequence[AcceptedKey] = (),
    ) -> None:
        agent, sender = lease.pair
        keys = settling or [key for key in settled_keys(records) if key in self._accepted]
        settled = ([key.run for key in keys], [key.steer for key in keys])
        values = (*values_of(records), *settled)
        for attempt in range(1, ATTEMPTS + 1):
            row = (
                await self.database.change(
                    queries.APPEND,
                    lease.key,
                    lease.fence,
                    log_name(lease.pair, attempt),
                    column(agent),
                    column(sender),
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
        lease.stamp = (row["conversation"], row["last_seq"])

    async def meta(self, pair: Pair) -> Meta | None:
        await self.open()
        row = await self.database.fetch_row(queries.META, key_of(pair))
        if row is None:
            return None
        marker = records_of([row["marker"]] if row["marker"] else [])
        summary = "".join(m.summary for m in marker if isinstance(m, MarkerRecord))
        return meta_of(row, summary)

    async def page(self, pair: Pair, offset: int, limit: int) -> Page | None:
        await self.open()
        row = await self.database.fetch_row(queries.CONVERSATION, key_of(pair))
        if row is None:
            return None
        offset = min(offset, LARGEST)
        entries = await self.database.fetch(queries.PAGE, row["id"], offset, limit, PAGE_BYTES)
        messages = messages_of(entry["body"] for entry in entries)
        total = row["message_count"]
        following = messages[-1].id + 1 if messages else total
        return Page(messages, total, following if following < total else None)

    async def find_run(self, pair: Pair, *, run: str = "", key: str = "") -> list[Record]:
        await self.open()
        if not run and not key:
            return []
        statement, value = (queries.RUN_OF_KEY, key) if key else (queries.RUN, run)
        entries = await self.database.fetch(statement, key_of(pair), column(value))
        return records_of(entry["body"] for entry in entries)

    async def archives(self, pair: Pair) -> list[Archive] | None:
        await self.open()
        row = await self.database.fetch_row(queries.CONVERSATION, key_of(pair))
        if row is None:
            return None
        entries = await self.database.fetch(queries.MARKERS, row["id"])
        markers = records_of(entry["body"] for entry in entries)
        return archives([marker for marker in markers if isinstance(marker, MarkerRecord)])

    async def conversations(self, agent: str = "", sender: str = "") -> list[tuple[str, Meta]]:
        await self.open()
        statement, values = queries.listing(column(agent), column(sender))
        return [
            (row["handle"], meta_of(row)) for row in await self.database.fetch(statement, *values)
        ]

    async def resolve(self, handle: str) -> Pair | None:
        if not is_handle(handle):
            return None
        await self.open()
        row = await self.database.fetch_row(queries.OF_HANDLE, handle)
        return pair_of(row) if row is not None else None

    async def delete(self, pair: Pair) -> bool:
        await self.open()
        async with self._turn(pair) as lease:
            rows = await self.database.change(queries.DELETE, lease.key, lease.fence)
            if not rows[0]["is_held"]:
                raise FencedError("another daemon has this conversation's turn by now; try again")
            lease.stamp = None
            return bool(rows[0]["is_gone"])

    # ── Following the logs ──────────────────────────────────────────────────────────────────

    async def versions(self) -> dict[str, int]:
        await self.open()
        rows = await self.database.fetch(queries.VERSIONS)
        return {row["handle"]: version_of(row) for row in rows}

    async def changes(self, since: str) -> Changes | None:
        await self.open()
        horizon, _, at = since.partition(":")
        row = (await self.database.fetch(queries.NOW))[0]
        cursor = f"{row['horizon']}:{row['at']}"
        if not since or row["at"] - int(at or 0) > queries.REMEMBERED_SECONDS:
            return Changes(cursor, None, ())
        changed = await self.database.fetch(queries.CHANGED, horizon)
        gone = await self.database.fetch(queries.GONE, horizon)
        return Changes(
            cursor,
            {row["handle"]: version_of(row) for row in changed},
            tuple(row["handle"] for row in gone),
        )

    async def follow(
        self, positions: Sequence[tuple[str, int]], limit: int
    ) -> list[Followed | StorageError | None]:
        found: list[Followed | StorageError | None] = []
        for handle, position in positions:
            try:
                found.append(await self._followed(handle, position, limit))
            except StorageError as error:
                found.append(error)
        return found

    async def _followed(self, handle: str, position: int, limit: int) -> Followed | None:
        if not is_handle(handle):
            return None
        await self.open()
        row = await self.database.fetch_row(queries.OF_HANDLE, handle)
        return await self._read_on(queries.FOLLOW, row, position, limit)

    async def read_records(self, pair: Pair, position: int, limit: int) -> Followed | None:
        await self.open()
        row = await self.database.fetch_row(queries.OF_PAIR, key_of(pair))
        return await self._read_on(queries.READ_RECORDS, row, position, limit)

    async def _read_on(
        self, statement: str, row: Any, position: int, limit: int
    ) -> Followed | None:
        """The records after a position of the conversation in this row."""
        if row is None:
            return None
        last = row["last_seq"]
        start = position if 0 <= position <= last else 0
        entries = await self.database.fetch(statement, row["id"], start, last, limit)
        reached = entries[-1]["seq"] if entries else start
        placed = tuple(
            (entry["seq"] - 1, record)
            for entry in entries
            if entry["body"] is not None
            for record in records_of([entry["body"]])
        )
        return Followed(
            pair_of(row),
            uncolumn(row["created_at"]),
            start,
            placed,
            reached,
            version_of(row),
            reached < last,
        )

    async def windows(self, places: Sequence[Place]) -> list[tuple[MessageRecord, ...]]:
        await self.open()
        rows = await self.database.fetch(
            queries.WINDOWS,
            [column(place.handle) for place in places],
            [place.id for place in places],
            [place.before for place in places],
            [place.after for place in places],
        )
        bodies: list[list[str]] = [[] for _ in places]
        for row in rows:
            bodies[row["place"] - 1].append(row["body"])
        found = [messages_of(each) for each in bodies]
        return [
            window if any(message.id == place.id for message in window) else ()
            for place, window in zip(places, found, strict=True)
        ]

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    async def agents(self) -> tuple[list[Agent], dict[str, str]]:
        await self.open()
        return await self.agent_table.list()

    async def agent(self, name: str) -> Agent | None:
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

    # ── What others want to hear ────────────────────────────────────────────────────────────

    async def want(self, wishes: Collection[tuple[str, str]]) -> None:
        """What this daemon's clients want to hear of, by agent and sender, from now on."""
        await self.open()
        async with self.database.transaction() as connection:
            await connection.execute("DELETE FROM interests WHERE daemon = $1", self.id)
            await connection.executemany(
                queries.WANT, [(self.id, column(agent), column(sender)) for agent, sender in wishes]
            )
            await connection.execute(queries.WANTED, self._channel)

    async def interests(self) -> list[tuple[UUID, str, str]]:
        """What the others' clients want to hear of."""
        await self.open()
        return [
            (row["daemon"], uncolumn(row["agent"]), uncolumn(row["sender"]))
            for row in await self.database.fetch(queries.INTERESTS, self.id)
        ]

    # ── Configuration ───────────────────────────────────────────────────────────────────────

    async def config(self) -> dict[str, Any]:
        return await in_thread(self._config.read)

    async def configure(self, section: str, key: str, value: Any) -> None:
        await in_thread(self._config.configure, section, key, value)

    async def close(self) -> None:
        self._closed = True
        await self.claims.close()
        await self.members.close()
        await self.mail.close()
        await self.database.close()


def version_of(row: Any) -> int:
    return hash((row["id"], row["last_seq"]))


def channel_of(url: str) -> str:
    """One for each fleet: those in other schemas of the database have others."""
    from urllib.parse import parse_qs, urlsplit

    schema = parse_qs(urlsplit(url).query).get("search_path", ["public"])[0]
    return f"crabtalk {schema}"[:63]
