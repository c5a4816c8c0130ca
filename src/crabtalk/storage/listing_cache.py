"""ListingCache: the meta of every log, so that a listing need not read the logs each time.

The first listing fills it, and appends keep it up to date. It is saved to a file on shutdown. The
file is derived from the logs and may be deleted at any time.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from . import log_file as logs
from .log_names import is_handle
from .records import ConversationMeta, Pair, Record

log = logging.getLogger(__name__)

# A log's size and modification time: while both are the same, its meta is the same.
FileFingerprint = tuple[int, int]


class ListingRow(msgspec.Struct, array_like=True, frozen=True):
    name: str
    fingerprint: FileFingerprint
    meta: ConversationMeta


_rows = msgspec.msgpack.Decoder(list[ListingRow])


class ListingCache:
    def __init__(self, logs_directory: Path, file: Path) -> None:
        self._directory = logs_directory
        self._file = file
        self._metas: dict[str, ConversationMeta] | None = None
        self._list_lock = asyncio.Lock()
        # Records that were appended to unknown logs during a scan.
        self._appended_meanwhile: dict[str, list[Record]] | None = None
        self._removed_meanwhile: set[str] = set()

    def record_append(
        self, name: str, pair: Pair, records: Sequence[Record], *, created: bool
    ) -> None:
        """Updates the meta of a log after an append."""
        if self._metas is not None and (created or name in self._metas):
            meta = ConversationMeta(*pair) if created else self._metas[name]
            self._metas[name] = apply_records(meta, records)
        elif self._appended_meanwhile is not None:
            self._appended_meanwhile.setdefault(name, []).extend(records)

    def remove_log(self, name: str) -> None:
        if self._metas is not None:
            self._metas.pop(name, None)
        if self._appended_meanwhile is not None:
            self._removed_meanwhile.add(name)

    async def list_rows(self) -> list[tuple[str, ConversationMeta]]:
        """Name and meta of all logs, including changes by other programs. Raises OSError."""
        async with self._list_lock:
            # Appends update the cache from here on, also while the thread reads.
            known = self._metas if self._metas is not None else {}
            self._metas = known
            meanwhile = self._appended_meanwhile = {}
            self._removed_meanwhile.clear()
            before = set(known)
            try:
                names, fresh = await asyncio.to_thread(self._scan_logs, before)
            finally:
                self._appended_meanwhile = None
            for name in self._removed_meanwhile & fresh.keys():
                del fresh[name]
            for name, meta in fresh.items():
                # The thread may have read some of these records; applying them twice is harmless.
                known.setdefault(name, apply_records(meta, meanwhile.get(name, ())))
            for name in before - names:
                known.pop(name, None)
            return list(known.items())

    def save(self) -> None:
        """Saves the cache for the next start. Blocks. A failed write is only logged."""
        if not self._metas:
            return
        rows = [
            ListingRow(name, fingerprint, meta)
            for name, fingerprint in self._list_log_files(with_times=True).items()
            if fingerprint is not None and (meta := self._metas.get(name)) is not None
        ]
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            temporary = self._file.with_suffix(".new")
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600
            )
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.msgpack.encode(rows))
            temporary.replace(self._file)
        except OSError as error:
            log.info("the catalogue of conversations was not saved: %s", error.strerror)

    # ── In threads ──────────────────────────────────────────────────────────────────────────

    def _scan_logs(self, known: set[str]) -> tuple[set[str], dict[str, ConversationMeta]]:
        """The names of all logs, and the meta of those that are not in `known`."""
        names: set[str] = set()
        fresh: dict[str, ConversationMeta] = {}
        saved = self._read_saved_rows() if not known else {}
        directory = str(self._directory)
        for name, fingerprint in self._list_log_files(with_times=bool(saved)).items():
            row = saved.get(name)
            if name in known:
                names.add(name)
            elif not is_handle(name):
                continue  # not a name that crabtalk gives, so clients cannot address it
            elif row is not None and row.fingerprint == fingerprint:
                fresh[name] = row.meta
            elif (meta := self._read_log_meta(f"{directory}/{name}.jsonl", name)) is not None:
                fresh[name] = meta
        return names | fresh.keys(), fresh

    def _list_log_files(self, *, with_times: bool) -> dict[str, FileFingerprint | None]:
        try:
            with os.scandir(self._directory) as entries:
                return {
                    entry.name[:-6]: read_fingerprint(entry) if with_times else None
                    for entry in entries
                    if entry.name.endswith(".jsonl")
                }
        except FileNotFoundError:
            return {}

    def _read_saved_rows(self) -> dict[str, ListingRow]:
        try:
            return {row.name: row for row in _rows.decode(self._file.read_bytes())}
        except (OSError, msgspec.MsgspecError, ValueError):
            return {}

    def _read_log_meta(self, path: str, name: str) -> ConversationMeta | None:
        try:
            meta = logs.read_last_snapshot(path) or logs.read_meta(Path(path))
        except OSError as error:
            log.warning("cannot read the log %s: %s", name, error.strerror)
            return None
        if meta is None and Path(path).stat().st_size:  # an empty log is being created right now
            log.warning("the log %s does not say whose it is; not listed", name)
        return meta


def read_fingerprint(entry: "os.DirEntry[str]") -> FileFingerprint | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # deleted a moment ago
        return None
    return status.st_size, status.st_mtime_ns


def apply_records(meta: ConversationMeta, records: Iterable[Record]) -> ConversationMeta:
    """The meta after these records, without the summary, which listings do not show."""
    for record in records:
        meta = meta.apply_record(record)
    return msgspec.structs.replace(meta, summary="") if meta.summary else meta
