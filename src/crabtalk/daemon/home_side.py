"""HomeSide: the files of a home, as a migration reads and writes them.

What is read stays as it is: half a line at the end of a log is left out, and a line that cannot be
read is copied aside, as by anybody who reads the log. What does not say whose it is stays behind.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from crabtalk.hooks.memories import FileMemories
from crabtalk.memory import Memory
from crabtalk.storage import AgentError, Pair, StorageError, Subscription, check_name, log_name
from crabtalk.storage import log as logs
from crabtalk.storage.agent_files import is_ours
from crabtalk.storage.files import in_thread
from crabtalk.storage.names import is_handle
from crabtalk.storage.records import decode, encode_line
from crabtalk.storage.scribe import file_system_flush, flush_directory
from crabtalk.transport import remove_leftovers, replace_file

from .migration import Conversation, Digest, Fold, Line, Logs, Texts, digest_of, pieces_of
from .subscriptions import SubscriptionFile, as_table, read_text

log = logging.getLogger(__name__)


class HomeSide:
    def __init__(self, home: Path) -> None:
        self.name = str(home)
        self.texts: Mapping[str, Texts] = {
            "agents": AgentTexts(home / "agents"),
            "memories": MemoryTexts(home / "memory"),
            "subscriptions": SubscriptionTexts(home / "events" / "subscriptions.toml"),
        }
        self.logs: Logs = LogFiles(home / "sessions")


class LogFiles:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._owners: dict[str, Pair] = {}

    async def names(self) -> list[str]:
        self._owners = await in_thread(self._survey)
        return list(self._owners)

    def _survey(self) -> dict[str, Pair]:
        """Sorted as text is. Of two logs of one conversation, the one that bears its name."""
        remove_leftovers(self._directory)
        owners: dict[str, Pair] = {}
        names: dict[Pair, str] = {}
        for name in sorted(self._files()):
            pair = self._owner(name)
            if pair is None:
                continue
            other = names.setdefault(pair, name)
            if other != name:
                if name == log_name(pair):
                    names[pair], other = name, owners.pop(other) and other
                else:
                    other, name = name, other
                log.warning("%s.jsonl is left out: %s.jsonl is of the same conversation", other, name)
                if name in owners:
                    continue
            owners[name] = pair
        return owners

    def _files(self) -> Iterator[str]:
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    if entry.name.endswith(".jsonl"):
                        yield entry.name.removesuffix(".jsonl")
        except FileNotFoundError:
            return

    def _owner(self, name: str) -> Pair | None:
        path = self._path(name)
        shown = os.fsencode(path.name).decode(errors="replace")
        if not is_handle(name) or path.is_symlink() or not path.is_file():
            log.warning("%s is left out: it is no log of ours", shown)
            return None
        pair = logs.owner(path)
        if pair is None and path.stat().st_size:  # a crash came before the first line of an empty one
            log.warning("%s is left out: it does not say whose it is", shown)
        return pair

    async def digest(self, name: str) -> Digest:
        return (await self.conversation(name)).digest

    async def conversation(self, name: str) -> Conversation:
        return await in_thread(self._conversation, name)

    def _conversation(self, name: str) -> Conversation:
        pair = self._owners[name]
        fold = Fold(pair)
        for line in self._lines(name):
            fold.add(line)
        meta = msgspec.structs.replace(fold.meta, agent=pair.agent, created_by=pair.sender)
        return Conversation(
            name, pair, meta, fold.count, fold.size, fold.marker, fold.of_entries
        )

    async def pieces(self, name: str) -> AsyncIterator[list[Line]]:
        following = pieces_of(self._lines(name))
        while piece := await in_thread(following):
            yield piece

    def _lines(self, name: str) -> Iterator[Line]:
        path = self._path(name)
        damaged: list[bytes] = []
        with logs.open_log(path) as file:
            for line in file:
                data = line.removesuffix(b"\n")
                try:
                    record = decode(data)
                except ValueError:
                    if not line.endswith(b"\n"):
                        log.warning("%s ends in half a line, which is left out", path.name)
                    elif data:
                        damaged.append(data)
                    continue
                yield Line(data if is_text(data) else encode_line(record)[:-1], record)
        if damaged:
            logs.set_aside(path, damaged)
            log.warning(
                "%s has lines that cannot be read (%d); they are left out, with a copy in %s",
                path.name,
                len(damaged),
                path.with_suffix(".damaged").name,
            )

    async def add(self, names: Sequence[str], source: Logs) -> None:
        """Their names come last, when all of them are on the disk."""
        asides: dict[str, Path] = {}
        try:
            for number, name in enumerate(names):
                if not is_handle(name):
                    raise StorageError(f"no log can be called {name!r}")
                aside = self._directory / f".{number}.{os.getpid()}.new"
                asides[name] = aside
                await self._write(aside, name, source)
            await in_thread(self._keep, asides)
        finally:
            for aside in asides.values():
                aside.unlink(missing_ok=True)

    async def _write(self, aside: Path, name: str, source: Logs) -> None:
        file = await in_thread(self._create, aside)
        with file:
            async for piece in source.pieces(name):
                data = b"".join(line.data + b"\n" for line in piece)
                await in_thread(file.write, data)

    def _create(self, aside: Path):  # type: ignore[no-untyped-def]
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        return os.fdopen(os.open(aside, flags, 0o600), "wb", buffering=0)

    def _keep(self, asides: Mapping[str, Path]) -> None:
        flush = file_system_flush()
        if flush is not None:
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                flush(directory)
            finally:
                os.close(directory)
        else:
            for aside in asides.values():
                with aside.open("rb") as file:
                    os.fsync(file.fileno())
        for name, aside in asides.items():
            aside.rename(self._path(name))
        flush_directory(self._directory)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.jsonl"


def is_text(data: bytes) -> bool:
    """Whether a database can hold it: what a record does not need may be anything."""
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False
