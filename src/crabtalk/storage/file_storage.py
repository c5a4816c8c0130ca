"""FileStorage: storage in a home directory, with one log per conversation and one file per agent.

Logs are read in threads and written by the thread of `log_writer`.
"""

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

from . import log_file as logs
from . import log_tail, run_lookup
from .accepted_journal import AcceptedJournal, list_keys
from .accepted_messages import (
    CUT_OFF,
    AcceptedMessage,
    current_time,
    find_closed_runs,
    find_settled_keys,
    find_used_keys,
    make_closing_records,
    make_interrupted_event,
)
from .agent import Agent
from .agent_files import AgentFiles
from .config_document import ConfigDocument
from .errors import StorageError
from .listing_cache import ListingCache
from .log_names import is_handle, make_log_name
from .log_writer import LogWriter, flush_directory
from .record_slices import RecordSlice, WindowRequest
from .records import (
    Archive,
    ConversationMeta,
    EventRecord,
    MessagePage,
    MessageRecord,
    Pair,
    Record,
    StoredConversation,
    encode_records,
    make_archives,
)
from .run_lookup import OpenRun

log = logging.getLogger(__name__)
T = TypeVar("T")

# Bytes of lines on one page: leaves room for what the frame of a response adds.
PAGE_BYTES = 4 * 1024 * 1024


class FileStorage:
    """With `flush`, data survives a power cut; without it, only the death of the process."""

    def __init__(self, home: Path, *, flush: bool = True) -> None:
        self._logs_directory = home / "sessions"
        self._config = ConfigDocument(home / "config.toml")
        self._agent_files = AgentFiles(home / "agents")
        self._log_writer = LogWriter(self._logs_directory, flush=flush)
        self._journal = AcceptedJournal(self._logs_directory, self._log_writer)
        # Pairs whose log has another name, because another pair's log has theirs. Very rare.
        self._moved_logs: dict[Pair, str] = {}
        self._listing_cache = ListingCache(self._logs_directory, home / "index" / "conversations")

    @property
    def log_writer(self) -> LogWriter:
        return self._log_writer

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    def claim_turn(self, pair: Pair, run: str = "", *, first: bool = False) -> None:
        """None: a home directory has only one daemon."""

    # ── Conversations ───────────────────────────────────────────────────────────────────────

    async def load_and_repair(self, pair: Pair) -> StoredConversation | None:
        with translate_os_errors():
            await self._journal.open()
        stored, open_run = await run_unless_missing(self._load_with_open_run, pair) or (None, None)
        if not self._journal.list_orphans(pair) and open_run is None:
            return stored
        await self._close_runs(pair, stored.meta if stored is not None else None, open_run)
        return await run_unless_missing(self._read_stored, pair, True)

    def _load_with_open_run(self, pair: Pair) -> tuple[StoredConversation | None, OpenRun | None]:
        stored = self._read_stored(pair, True)
        return stored, self._find_open_run(pair) if stored is not None else None

    async def has_open_run(self, pair: Pair) -> bool:
        return await run_unless_missing(self._find_open_run, pair) is not None

    def _find_open_run(self, pair: Pair) -> OpenRun | None:
        path = self._find_log(pair)
        return run_lookup.find_open_run(path) if path is not None else None

    async def read_conversation(self, pair: Pair) -> StoredConversation | None:
        return await run_unless_missing(self._read_stored, pair, False)

    def _read_stored(self, pair: Pair, repair: bool) -> StoredConversation | None:
        path = self._find_log(pair)
        if path is None:
            return None
        size = logs.repair_log(path) if repair else logs.measure_whole_lines(path)
        if size == 0:
            # A crash came after the file was created and before its first line was written.
            if repair:
                path.unlink()
            return None
        return logs.read_stored(path, size, pair)

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        name = self._moved_logs.get(pair) or make_log_name(pair)
        await self._log_writer.append(name, encode_records(records), create=create, seal=True)
        self._listing_cache.record_append(name, pair, records, created=create)
        self._journal.settle(find_settled_keys(records))

    async def read_meta(self, pair: Pair) -> ConversationMeta | None:
        return await run_unless_missing(self._read_meta, pair)

    def _read_meta(self, pair: Pair) -> ConversationMeta | None:
        path = self._find_log(pair)
        return logs.read_meta(path, pair) if path is not None else None

    async def read_page(self, pair: Pair, offset: int, limit: int) -> MessagePage | None:
        return await run_unless_missing(self._read_page, pair, offset, limit)

    def _read_page(self, pair: Pair, offset: int, limit: int) -> MessagePage | None:
        path = self._find_log(pair)
        if path is None:
            return None
        messages, reader = logs.read_messages(path, offset, limit, PAGE_BYTES)
        logs.report_damage(path, reader)
        meta = logs.read_meta(path, pair)
        total = meta.message_count if meta is not None else 0
        missing = [number for number in reader.missing if number >= offset]
        if not missing:
            next_id = messages[-1].id + 1 if messages else total
            return MessagePage(tuple(messages), total, next_id if next_id < total else None)
        ids = sorted([*missing, *[record.id for record in messages]])[:limit]
        next_id = ids[-1] + 1 if ids else total
        return MessagePage(
            tuple(record for record in messages if record.id < next_id),
            total,
            next_id if next_id < total else None,
            tuple(number for number in missing if number < next_id),
        )

    async def find_run(self, pair: Pair, *, run: str = "", key: str = "") -> list[Record]:
        return await run_unless_missing(self._find_run, pair, run, key) or []

    def _find_run(self, pair: Pair, run: str, key: str) -> list[Record] | None:
        path = self._find_log(pair)
        return run_lookup.find_run(path, run, key) if path is not None else None

    async def read_records(self, pair: Pair, position: int, limit: int) -> RecordSlice | None:
        return await run_unless_missing(self._read_records, pair, position, limit)

    def _read_records(self, pair: Pair, position: int, limit: int) -> RecordSlice | None:
        path = self._find_log(pair)
        return (
            log_tail.read_records_after(path, position, limit, with_events=True)
            if path is not None
            else None
        )

    async def list_archives(self, pair: Pair) -> list[Archive] | None:
        return await run_unless_missing(self._list_archives, pair)

    def _list_archives(self, pair: Pair) -> list[Archive] | None:
        path = self._find_log(pair)
        if path is None:
            return None
        damaged: list[bytes] = []
        archives = make_archives(logs.read_markers(path, damaged))
        if damaged:
            logs.set_aside(path, damaged)
        return archives

    async def list_conversations(
        self, agent: str = "", sender: str = ""
    ) -> list[tuple[str, ConversationMeta]]:
        with translate_os_errors():
            rows = await self._listing_cache.list_rows()
        matching = [
            (name, meta)
            for name, meta in rows
            if (not agent or meta.agent == agent) and (not sender or meta.created_by == sender)
        ]
        log_counts = Counter((meta.agent, meta.created_by) for _, meta in matching)
        if len(log_counts) == len(matching):
            return matching
        copied = [Pair(*pair) for pair, count in log_counts.items() if count > 1]
        real_logs = await run_in_thread(lambda: {pair: self._find_log(pair) for pair in copied})
        return [
            (name, meta)
            for name, meta in matching
            if real_logs.get(meta.pair) in (self._log_path(name), None)  # a copy cannot be opened
        ]

    async def resolve_handle(self, handle: str) -> Pair | None:
        if not is_handle(handle):
            return None
        return await run_unless_missing(self._resolve, handle)

    def _resolve(self, handle: str) -> Pair | None:
        path = self._logs_directory / f"{handle}.jsonl"
        pair = logs.read_owner(path) if path.is_file() else None
        # A copy of a log names the same pair, and must not be taken for the log itself.
        return pair if pair is not None and self._find_log(pair) in (path, None) else None

    async def delete_conversation(self, pair: Pair) -> bool:
        name = await run_unless_missing(self._delete, pair)
        self._moved_logs.pop(pair, None)
        if name is not None:
            self._listing_cache.remove_log(name)
        return name is not None

    def _delete(self, pair: Pair) -> str | None:
        path = self._find_log(pair)
        if path is None:
            return None
        path.with_suffix(".damaged").unlink(missing_ok=True)
        path.unlink()
        flush_directory(self._logs_directory)
        return path.stem

    def _find_log(self, pair: Pair) -> Path | None:
        """The pair's log. It is found by its name; the owner in its meta decides."""
        first, free = make_log_name(pair), ""
        found: Path | None = None
        for attempt in itertools.count(1):
            name = make_log_name(pair, attempt)
            path = self._logs_directory / f"{name}.jsonl"
            if not path.is_file():
                free = free or name
            elif logs.read_owner(path) in (pair, None):
                found = path
            # Always try the second name: the log that had the first one may be deleted by now.
            if found is not None or (free and attempt > 1):
                break
        name = found.stem if found is not None else free
        if name != first:
            self._moved_logs[pair] = name
        else:
            self._moved_logs.pop(pair, None)
        return found

    # ── Accepted messages ───────────────────────────────────────────────────────────────────

    async def accept_message(self, entry: AcceptedMessage) -> None:
        with translate_os_errors():
            await self._journal.accept(entry)

    async def withdraw_messages(self, entries: Sequence[AcceptedMessage]) -> None:
        self._journal.settle(list_keys(entries))

    def abandon_messages(self, entries: Sequence[AcceptedMessage]) -> None:
        self._journal.abandon(list_keys(entries))

    async def list_unsettled(self) -> list[Pair]:
        with translate_os_errors():
            await self._journal.open()
        return self._journal.list_orphaned_pairs()

    async def _close_runs(
        self, pair: Pair, meta: ConversationMeta | None, open_run: OpenRun | None
    ) -> None:
        """Writes the end of runs that a crash interrupted: the run in flight and those that waited.

        The crash may have come after a message was appended and before the journal was updated, or
        in the middle of this method, so the log is searched first."""
        entries = self._journal.list_orphans(pair)
        start = min((entry.after for entry in entries), default=0)
        if meta is not None and start > meta.message_count:
            start = 0  # the conversation was deleted and created again since
        recent = await run_in_thread(self._records_from, pair, start) if entries else []
        used_keys = await find_used_keys(self, pair, entries)
        records = make_closing_records(
            pair,
            meta,
            entries,
            written=find_settled_keys(recent),
            used_keys=used_keys,
            closed=find_closed_runs(recent),
            end=make_cut_off_record(open_run, pair) if open_run is not None else None,
        )
        if records:
            await self.append(pair, records, create=meta is None)
        self._journal.settle(list_keys(entries))
        count = len(entries)
        log.info("%d accepted messages of %.80s with %.80s are closed", count, *pair)

    def _records_from(self, pair: Pair, message_id: int) -> list[Record]:
        path = self._find_log(pair)
        return logs.read_records_from(path, message_id) if path is not None else []

    # ── Following the logs ──────────────────────────────────────────────────────────────────

    async def read_versions(self) -> dict[str, int]:
        return await run_in_thread(self._read_versions)

    def _read_versions(self) -> dict[str, int]:
        versions: dict[str, int] = {}
        try:
            with os.scandir(self._logs_directory) as entries:
                for entry in entries:
                    if entry.name.endswith(".jsonl"):
                        with contextlib.suppress(FileNotFoundError):  # deleted a moment ago
                            status = entry.stat(follow_symlinks=False)
                            versions[entry.name[:-6]] = log_tail.compute_version(status)
        except FileNotFoundError:
            pass  # there is no conversation yet
        return versions

    async def read_changes(self, since: str) -> None:
        """None: other programs may change files without notice, so only versions can tell."""

    async def read_new_records(
        self, positions: Sequence[tuple[str, int]], limit: int
    ) -> list[RecordSlice | StorageError | None]:
        # One thread call for all logs: the call costs more than reading what a turn added.
        return await run_in_thread(
            lambda: [
                self._read_new_records(handle, position, limit) for handle, position in positions
            ]
        )

    def _read_new_records(
        self, handle: str, position: int, limit: int
    ) -> RecordSlice | StorageError | None:
        time.sleep(0)  # give the event loop's thread a chance to run
        if not is_handle(handle):
            return None
        try:
            return log_tail.read_records_after(self._log_path(handle), position, limit)
        except FileNotFoundError:
            return None
        except OSError as error:
            return to_storage_error(error)
        except StorageError as error:
            return error

    async def read_windows(
        self, requests: Sequence[WindowRequest]
    ) -> list[tuple[MessageRecord, ...]]:
        return await run_in_thread(lambda: [self._read_window(request) for request in requests])

    def _read_window(self, request: WindowRequest) -> tuple[MessageRecord, ...]:
        try:
            return log_tail.read_window(self._log_path(request.handle), request)
        except FileNotFoundError:
            return ()

    def _log_path(self, handle: str) -> Path:
        return self._logs_directory / f"{handle}.jsonl"

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    async def list_agents(self) -> tuple[list[Agent], dict[str, str]]:
        return await run_in_thread(self._agent_files.list)

    async def load_agent(self, name: str) -> Agent | None:
        return await run_in_thread(self._agent_files.load, name)

    async def save_agent(self, agent: Agent) -> None:
        await run_in_thread(self._agent_files.save, agent)

    async def delete_agent(self, name: str) -> bool:
        return await run_in_thread(self._agent_files.delete, name)

    async def rename_agent(self, old: str, new: str) -> None:
        await run_in_thread(self._agent_files.rename, old, new)

    # ── Configuration ───────────────────────────────────────────────────────────────────────

    async def read_config(self) -> dict[str, Any]:
        return await run_in_thread(self._config.read)

    async def set_config_value(self, section: str, key: str, value: Any) -> None:
        await run_in_thread(self._config.set_value, section, key, value)

    async def close(self) -> None:
        await self._log_writer.close()
        await self._journal.close()
        await asyncio.to_thread(self._listing_cache.save)


def make_cut_off_record(run: OpenRun, pair: Pair) -> EventRecord:
    """The end record of a run that a crash interrupted."""
    return make_interrupted_event(run.run, run.speaker or pair.agent, current_time(), CUT_OFF)


async def run_unless_missing(function: Callable[..., T | None], *arguments: Any) -> T | None:
    """Runs in a thread; returns None when a file is missing, such as one deleted meanwhile."""

    def call() -> T | None:
        try:
            return function(*arguments)
        except FileNotFoundError:
            return None

    return await run_in_thread(call)


async def run_in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Runs a blocking function in a thread. Raises StorageError instead of OSError."""
    with translate_os_errors():
        return await asyncio.to_thread(function, *arguments)


@contextmanager
def translate_os_errors() -> Iterator[None]:
    """Raises StorageError instead of OSError."""
    try:
        yield
    except OSError as error:
        raise to_storage_error(error) from None


def to_storage_error(error: OSError) -> StorageError:
    what = error.filename or "the home directory"
    return StorageError(f"cannot use {what}: {error.strerror or error}")
