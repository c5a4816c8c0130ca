"""FileStorage: a home directory as Storage. One log a conversation, one file an agent."""

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from . import log as logs
from . import run_log, trail
from .acceptance import (
    CUT_OFF,
    Accepted,
    closed_runs,
    closing_records,
    current_time,
    find_used_keys,
    interrupted_event,
    settled_keys,
)
from .accepted_journal import AcceptedJournal, keys_of
from .agent import Agent
from .agent_files import AgentFiles
from .catalogue import Catalogue
from .config_document import ConfigDocument
from .errors import StorageError
from .following import Followed, Place
from .names import is_handle, log_name
from .records import (
    Archive,
    EventRecord,
    MessageRecord,
    Meta,
    Page,
    Pair,
    Record,
    Stored,
    archives,
    encode,
)
from .run_log import OpenRun
from .scribe import Scribe, flush_directory

log = logging.getLogger(__name__)
T = TypeVar("T")

# Bytes of lines on one page: leaves room for what an answer's frame adds to them.
PAGE_BYTES = 4 * 1024 * 1024


class FileStorage:
    """`flush` True survives a power cut, False the death of the process."""

    def __init__(self, home: Path, *, flush: bool = True) -> None:
        self._sessions = home / "sessions"
        self._config = ConfigDocument(home / "config.toml")
        self._agents = AgentFiles(home / "agents")
        self._scribe = Scribe(self._sessions, flush=flush)
        self._accepted = AcceptedJournal(self._sessions, self._scribe)
        # Pairs whose name was taken by another, as good as never.
        self._moved: dict[Pair, str] = {}
        self._catalogue = Catalogue(self._sessions, home / "index" / "conversations")

    @property
    def scribe(self) -> Scribe:
        return self._scribe

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    def claim(self, pair: Pair, run: str = "", *, first: bool = False) -> None:
        """A home has one daemon."""

    # ── Conversations ───────────────────────────────────────────────────────────────────────

    async def load(self, pair: Pair) -> Stored | None:
        with told():
            await self._accepted.open()
        found = await if_there(self._load_to_close, pair)
        stored, open_run = found or (None, None)
        if not self._accepted.orphans_of(pair) and open_run is None:
            return stored
        await self._close_runs(pair, stored.meta if stored is not None else None, open_run)
        return await if_there(self._load, pair, True)

    def _load_to_close(self, pair: Pair) -> tuple[Stored | None, OpenRun | None]:
        stored = self._load(pair, True)
        return stored, self._find_open_run(pair) if stored is not None else None

    async def has_open_run(self, pair: Pair) -> bool:
        return await if_there(self._find_open_run, pair) is not None

    def _find_open_run(self, pair: Pair) -> OpenRun | None:
        path = self._find(pair)
        return run_log.find_open_run(path) if path is not None else None

    async def read(self, pair: Pair) -> Stored | None:
        return await if_there(self._load, pair, False)

    def _load(self, pair: Pair, mend: bool) -> Stored | None:
        path = self._find(pair)
        if path is None:
            return None
        size = logs.mend(path) if mend else logs.whole_size(path)
        if size == 0:
            # A crash came between the file and its first line.
            if mend:
                path.unlink()
            return None
        return logs.read_stored(path, size, pair)

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        name = self._moved.get(pair) or log_name(pair)
        await self._scribe.append(name, encode(records), create=create, seal=True)
        self._catalogue.note(name, pair, records, created=create)
        self._accepted.settle(settled_keys(records))

    async def meta(self, pair: Pair) -> Meta | None:
        return await if_there(self._meta, pair)

    def _meta(self, pair: Pair) -> Meta | None:
        path = self._find(pair)
        return logs.read_meta(path, pair) if path is not None else None

    async def page(self, pair: Pair, offset: int, limit: int) -> Page | None:
        return await if_there(self._page, pair, offset, limit)

    def _page(self, pair: Pair, offset: int, limit: int) -> Page | None:
        path = self._find(pair)
        if path is None:
            return None
        messages, reader = logs.read_messages(path, offset, limit, PAGE_BYTES)
        logs.report_damage(path, reader)
        meta = logs.read_meta(path, pair)
        total = meta.message_count if meta is not None else 0
        missing = [number for number in reader.missing if number >= offset]
        if not missing:
            following = messages[-1].id + 1 if messages else total
            return Page(tuple(messages), total, following if following < total else None)
        shown = sorted([*missing, *[record.id for record in messages]])[:limit]
        following = shown[-1] + 1 if shown else total
        return Page(
            tuple(record for record in messages if record.id < following),
            total,
            following if following < total else None,
            tuple(number for number in missing if number < following),
        )

    async def find_run(self, pair: Pair, *, run: str = "", key: str = "") -> list[Record]:
        return await if_there(self._find_run, pair, run, key) or []

    def _find_run(self, pair: Pair, run: str, key: str) -> list[Record] | None:
        path = self._find(pair)
        return run_log.find_run(path, run, key) if path is not None else None

    async def read_records(self, pair: Pair, position: int, limit: int) -> Followed | None:
        return await if_there(self._read_records, pair, position, limit)

    def _read_records(self, pair: Pair, position: int, limit: int) -> Followed | None:
        path = self._find(pair)
        return trail.follow(path, position, limit, with_events=True) if path is not None else None

    async def archives(self, pair: Pair) -> list[Archive] | None:
        return await if_there(self._archives, pair)

    def _archives(self, pair: Pair) -> list[Archive] | None:
        path = self._find(pair)
        if path is None:
            return None
        damaged: list[bytes] = []
        found = archives(logs.markers(path, damaged))
        if damaged:
            logs.set_aside(path, damaged)
        return found

    async def conversations(self, agent: str = "", sender: str = "") -> list[tuple[str, Meta]]:
        with told():
            rows = await self._catalogue.rows()
        found = [
            (name, meta)
            for name, meta in rows
            if (not agent or meta.agent == agent) and (not sender or meta.created_by == sender)
        ]
        logs_of = Counter((meta.agent, meta.created_by) for _, meta in found)
        if len(logs_of) == len(found):
            return found
        several = [Pair(*pair) for pair, count in logs_of.items() if count > 1]
        real = await in_thread(lambda: {pair: self._find(pair) for pair in several})
        return [
            (name, meta)
            for name, meta in found
            if real.get(meta.pair) in (self._path(name), None)  # a copy cannot be opened
        ]

    async def resolve(self, handle: str) -> Pair | None:
        if not is_handle(handle):
            return None
        return await if_there(self._resolve, handle)

    def _resolve(self, handle: str) -> Pair | None:
        path = self._sessions / f"{handle}.jsonl"
        pair = logs.owner(path) if path.is_file() else None
        # A copy that somebody made says whose it is as well, and must not stand for the log itself.
        return pair if pair is not None and self._find(pair) in (path, None) else None

    async def delete(self, pair: Pair) -> bool:
        name = await if_there(self._delete, pair)
        self._moved.pop(pair, None)
        if name is not None:
            self._catalogue.forget(name)
        return name is not None

    def _delete(self, pair: Pair) -> str | None:
        path = self._find(pair)
        if path is None:
            return None
        path.with_suffix(".damaged").unlink(missing_ok=True)
        path.unlink()
        flush_directory(self._sessions)
        return path.stem

    def _find(self, pair: Pair) -> Path | None:
        """The pair's log. The name leads there, its meta has the last word."""
        first, free = log_name(pair), ""
        found: Path | None = None
        for attempt in itertools.count(1):
            name = log_name(pair, attempt)
            path = self._sessions / f"{name}.jsonl"
            if not path.is_file():
                free = free or name
            elif logs.owner(path) in (pair, None):
                found = path
            # The second is looked at in any case: the log it gave way to may be deleted by now.
            if found is not None or (free and attempt > 1):
                break
        name = found.stem if found is not None else free
        if name != first:
            self._moved[pair] = name
        else:
            self._moved.pop(pair, None)
        return found

    # ── Accepted texts ──────────────────────────────────────────────────────────────────────

    async def accept(self, entry: Accepted) -> None:
        with told():
            await self._accepted.accept(entry)

    async def withdraw(self, entries: Sequence[Accepted]) -> None:
        self._accepted.settle(keys_of(entries))

    def abandon(self, entries: Sequence[Accepted]) -> None:
        self._accepted.abandon(keys_of(entries))

    async def unsettled(self) -> list[Pair]:
        with told():
            await self._accepted.open()
        return self._accepted.orphaned_pairs()

    async def _close_runs(self, pair: Pair, meta: Meta | None, open_run: OpenRun | None) -> None:
        """Ends on the record what a crash cut off: the run in flight and those that waited.

        The crash may have come after a message was appended and before the journal said so, or
        in the middle of this: so the log is looked at first."""
        entries = self._accepted.orphans_of(pair)
        start = min((entry.after for entry in entries), default=0)
        if meta is not None and start > meta.message_count:
            start = 0  # another conversation of that name was begun since
        recent = await in_thread(self._records_from, pair, start) if entries else []
        used_keys = await find_used_keys(self, pair, entries)
        records = closing_records(
            pair,
            meta,
            entries,
            written=settled_keys(recent),
            used_keys=used_keys,
            closed=closed_runs(recent),
            end=end_of(open_run, pair) if open_run is not None else None,
        )
        if records:
            await self.append(pair, records, create=meta is None)
        self._accepted.settle(keys_of(entries))
        count = len(entries)
        log.info("%d accepted messages of %.80s with %.80s are closed", count, *pair)

    def _records_from(self, pair: Pair, message_id: int) -> list[Record]:
        path = self._find(pair)
        return logs.records_from(path, message_id) if path is not None else []

    # ── Following the logs ──────────────────────────────────────────────────────────────────

    async def versions(self) -> dict[str, int]:
        return await in_thread(self._versions)

    def _versions(self) -> dict[str, int]:
        found: dict[str, int] = {}
        try:
            with os.scandir(self._sessions) as entries:
                for entry in entries:
                    if entry.name.endswith(".jsonl"):
                        with contextlib.suppress(FileNotFoundError):  # deleted a moment ago
                            status = entry.stat(follow_symlinks=False)
                            found[entry.name[:-6]] = trail.version_of(status)
        except FileNotFoundError:
            pass  # nothing was said yet
        return found

    async def changes(self, since: str) -> None:
        """Files may be changed by anybody, who tells nobody."""

    async def follow(
        self, positions: Sequence[tuple[str, int]], limit: int
    ) -> list[Followed | StorageError | None]:
        # All in one go: to a thread and back takes longer than what a turn has added to a log.
        return await in_thread(
            lambda: [self._followed(handle, position, limit) for handle, position in positions]
        )

    def _followed(self, handle: str, position: int, limit: int) -> Followed | StorageError | None:
        time.sleep(0)  # the loop's turn, if it waits for one
        if not is_handle(handle):
            return None
        try:
            return trail.follow(self._path(handle), position, limit)
        except FileNotFoundError:
            return None
        except OSError as error:
            return refused(error)
        except StorageError as error:
            return error

    async def windows(self, places: Sequence[Place]) -> list[tuple[MessageRecord, ...]]:
        return await in_thread(lambda: [self._window(place) for place in places])

    def _window(self, place: Place) -> tuple[MessageRecord, ...]:
        try:
            return trail.read_window(self._path(place.handle), place)
        except FileNotFoundError:
            return ()

    def _path(self, handle: str) -> Path:
        return self._sessions / f"{handle}.jsonl"

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    async def agents(self) -> tuple[list[Agent], dict[str, str]]:
        return await in_thread(self._agents.list)

    async def agent(self, name: str) -> Agent | None:
        return await in_thread(self._agents.load, name)

    async def save_agent(self, agent: Agent) -> None:
        await in_thread(self._agents.save, agent)

    async def delete_agent(self, name: str) -> bool:
        return await in_thread(self._agents.delete, name)

    async def rename_agent(self, old: str, new: str) -> None:
        await in_thread(self._agents.rename, old, new)

    # ── Configuration ───────────────────────────────────────────────────────────────────────

    async def config(self) -> dict[str, Any]:
        return await in_thread(self._config.read)

    async def configure(self, section: str, key: str, value: Any) -> None:
        await in_thread(self._config.configure, section, key, value)

    async def close(self) -> None:
        await self._scribe.close()
        await self._accepted.close()
        await asyncio.to_thread(self._catalogue.save)


def end_of(run: OpenRun, pair: Pair) -> EventRecord:
    """The record that says that a run was cut off."""
    return interrupted_event(run.run, run.speaker or pair.agent, current_time(), CUT_OFF)


async def if_there(function: Callable[..., T | None], *arguments: Any) -> T | None:
    """What is deleted while it is being looked for is not there."""

    def look() -> T | None:
        try:
            return function(*arguments)
        except FileNotFoundError:
            return None

    return await in_thread(look)


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Nothing here may stall the loop."""
    with told():
        return await asyncio.to_thread(function, *arguments)


@contextmanager
def told() -> Iterator[None]:
    """What the file system refuses is a StorageError."""
    try:
        yield
    except OSError as error:
        raise refused(error) from None


def refused(error: OSError) -> StorageError:
    what = error.filename or "the home directory"
    return StorageError(f"cannot use {what}: {error.strerror or error}")
