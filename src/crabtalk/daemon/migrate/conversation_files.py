"""ConversationLogFiles: reads and writes the logs of a home for a migration.

Reading does not change a log: half a line at its end is left out, and a line that cannot be parsed
is copied to another file, as whenever a log is read. A log without an owner is left out. Checksums
are removed when reading and computed again when writing.
"""

import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import msgspec

from crabtalk.storage import Pair, StorageError, make_log_name
from crabtalk.storage import log_file as logs
from crabtalk.storage.checksums import remove_seal, seal_lines
from crabtalk.storage.file_storage import run_in_thread
from crabtalk.storage.log_names import is_handle
from crabtalk.storage.log_writer import file_system_flush, flush_directory
from crabtalk.storage.records import decode_record, encode_line
from crabtalk.transport import remove_stale_temporary_files

from .migration import (
    ConversationHeader,
    ConversationItems,
    EntryAccumulator,
    ItemDigest,
    MigrationEntry,
    make_chunk_reader,
)

log = logging.getLogger(__name__)


class ConversationLogFiles:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._owners: dict[str, Pair] = {}

    async def names(self) -> list[str]:
        self._owners = await run_in_thread(self._scan)
        return list(self._owners)

    def _scan(self) -> dict[str, Pair]:
        """The owners of all logs. Of two logs of a conversation, the one with its name is used."""
        remove_stale_temporary_files(self._directory)
        names: dict[Pair, str] = {}
        for name in sorted(self._list_names()):
            pair = self._read_owner(name)
            if pair is None:
                continue
            used, other = name, names.get(pair)
            if other is not None:
                used, ignored = (name, other) if name == make_log_name(pair) else (other, name)
                log.warning(
                    "%s.jsonl is left out: %s.jsonl is of the same conversation", ignored, used
                )
            names[pair] = used
        return {name: pair for pair, name in sorted(names.items(), key=lambda item: item[1])}

    def _list_names(self) -> Iterator[str]:
        try:
            with os.scandir(self._directory) as entries:
                yield from (e.name[:-6] for e in entries if e.name.endswith(".jsonl"))
        except FileNotFoundError:
            return  # no conversation yet

    def _read_owner(self, name: str) -> Pair | None:
        path = self._path(name)
        shown = os.fsencode(path.name).decode(errors="replace")
        if not is_handle(name) or path.is_symlink() or not path.is_file():
            log.warning("%s is left out: it is no log of ours", shown)
            return None
        pair = logs.read_owner(path)
        if (
            pair is None and path.stat().st_size
        ):  # an empty log is from a crash before its first line
            log.warning("%s is left out: it does not say whose it is", shown)
        return pair

    async def digests(self, names: Sequence[str]) -> list[ItemDigest]:
        return [header.digest for header in await self.read_headers(names)]

    async def read_headers(self, names: Sequence[str]) -> list[ConversationHeader]:
        return await run_in_thread(lambda: [self._read_header(name) for name in names])

    def _read_header(self, name: str) -> ConversationHeader:
        pair = self._owners[name]
        accumulator = EntryAccumulator(pair)
        for line in self._read_entries(name):
            accumulator.add(line)
        meta = msgspec.structs.replace(accumulator.meta, agent=pair.agent, created_by=pair.sender)
        return ConversationHeader(
            name,
            pair,
            meta,
            accumulator.count,
            accumulator.size,
            accumulator.marker,
            accumulator.entries_hash,
        )

    async def read_chunks(
        self, names: Sequence[str]
    ) -> AsyncIterator[list[tuple[str, MigrationEntry]]]:
        read_next = make_chunk_reader(
            (name, line) for name in names for line in self._read_entries(name)
        )
        while chunk := await run_in_thread(read_next):
            yield chunk

    def _read_entries(self, name: str) -> Iterator[MigrationEntry]:
        path = self._path(name)
        damaged: list[bytes] = []
        with logs.open_log(path) as file:
            for line in file:
                data = line.removesuffix(b"\n")
                try:
                    record = decode_record(data)
                except ValueError:
                    if not line.endswith(b"\n"):
                        log.warning("%s ends in half a line, which is left out", path.name)
                    elif data:
                        damaged.append(data)
                    continue
                data = remove_seal(data)  # a database computes its own checksums
                yield MigrationEntry(data if is_text(data) else encode_line(record)[:-1], record)
        if damaged:
            logs.set_aside(path, damaged)
            log.warning(
                "%s has lines that cannot be read (%d); they are left out, with a copy in %s",
                path.name,
                len(damaged),
                path.with_suffix(".damaged").name,
            )

    # ── Writing ─────────────────────────────────────────────────────────────────────────────

    async def add(self, names: Sequence[str], source: ConversationItems) -> None:
        """Written to temporary files, which are renamed when all of them are on disk."""
        for name in names:
            if not is_handle(name):
                raise StorageError(f"no log can be called {name!r}; delete that conversation")
        temporary_paths = {
            name: self._directory / f".{number}.{os.getpid()}.new"
            for number, name in enumerate(names)
        }
        sums: dict[str, bytes] = {}  # of the last line of each
        try:
            async for chunk in source.read_chunks(names):
                await run_in_thread(self._write, temporary_paths, chunk, sums)
            await run_in_thread(self._commit, temporary_paths)
        finally:
            for temporary_path in temporary_paths.values():
                temporary_path.unlink(missing_ok=True)

    def _write(
        self,
        temporary_paths: Mapping[str, Path],
        chunk: Sequence[tuple[str, MigrationEntry]],
        sums: dict[str, bytes],
    ) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        for name, lines in groupby(chunk, key=itemgetter(0)):
            with os.fdopen(os.open(temporary_paths[name], flags, 0o600), "ab") as file:
                data = b"".join(line.data + b"\n" for _, line in lines)
                sealed, sums[name] = seal_lines(data, sums.get(name, b""))
                file.write(sealed)

    def _commit(self, temporary_paths: Mapping[str, Path]) -> None:
        flush = file_system_flush()
        for temporary_path in temporary_paths.values():
            descriptor = os.open(temporary_path, os.O_RDONLY)
            try:
                (flush or os.fsync)(descriptor)
            finally:
                os.close(descriptor)
            if flush is not None:
                break  # syncs the whole file system, and so all files
        for name, temporary_path in temporary_paths.items():
            temporary_path.rename(self._path(name))
        flush_directory(self._directory)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.jsonl"


def is_text(data: bytes) -> bool:
    """Whether a database can store it: unknown fields of a record can hold any bytes."""
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False
