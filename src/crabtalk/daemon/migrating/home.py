"""HomeSide: what a home keeps beside logs, as a migration reads and writes it: agents, memories and
subscriptions, each as the bytes it is."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from crabtalk.daemon.subscriptions import TABLE, SubscriptionFile, read_text, table_of, written
from crabtalk.hooks.memories import FileMemories
from crabtalk.memory import Memory
from crabtalk.storage import AgentError, StorageError, Subscription, check_name
from crabtalk.storage.agent_files import is_ours
from crabtalk.storage.files import in_thread
from crabtalk.transport import replace_file

from .logs import LogFiles, is_text
from .migration import Digest, Logs, Texts, digest_of

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


class AgentTexts:
    """Also of agents that cannot be used: what is wrong with them can be mended anywhere."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def names(self) -> list[str]:
        return await in_thread(self._names)

    def _names(self) -> list[str]:
        found: list[str] = []
        try:
            files = sorted(path.name for path in self._directory.iterdir())
        except FileNotFoundError:
            return found
        for file in filter(is_ours, files):
            if trouble := self._trouble(file):
                shown = os.fsencode(file).decode(errors="replace")
                log.warning("agents/%s is left out: %s", shown, trouble)
            else:
                found.append(file.removesuffix(".toml"))
        return sorted(found)

    def _trouble(self, file: str) -> str:
        try:
            check_name(file.removesuffix(".toml"))
        except AgentError as error:
            return str(error)
        path = self._directory / file
        if not path.is_file():
            return "it is no file"
        return "" if is_text(path.read_bytes()) else "it is no text"

    async def digests(self, names: Sequence[str]) -> list[Digest]:
        return [Digest(digest_of(await self.read(name))) for name in names]

    async def read(self, name: str) -> bytes:
        return await in_thread(self._path(name).read_bytes)

    async def add(self, things: Sequence[tuple[str, bytes]]) -> None:
        for name, data in things:
            await in_thread(self._write, name, data)

    def _write(self, name: str, data: bytes) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path(name), data, 0o600)

    def _path(self, name: str) -> Path:
        check_name(name)
        return self._directory / f"{name}.toml"


class MemoryTexts:
    """As CRMEM has them, with what their journals add."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def names(self) -> list[str]:
        return sorted(await FileMemories(self._directory).names())

    async def digests(self, names: Sequence[str]) -> list[Digest]:
        return [Digest(digest_of(await self.read(name))) for name in names]

    async def read(self, name: str) -> bytes:
        memory = await asyncio.to_thread(Memory.read, self._path(name))
        return memory.encode()

    async def add(self, things: Sequence[tuple[str, bytes]]) -> None:
        for name, data in things:
            await asyncio.to_thread(Memory.create, self._path(name), data)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.crmem"


class SubscriptionTexts:
    """By their numbers. Comments in the file stay behind."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Subscription] = {}

    async def names(self) -> list[str]:
        self._known = {str(one.id): one for one in await SubscriptionFile(self._path).load()}
        return sorted(self._known)

    async def digests(self, names: Sequence[str]) -> list[Digest]:
        return [Digest(digest_of(await self.read(name))) for name in names]

    async def read(self, name: str) -> bytes:
        return msgspec.json.encode(self._known[name])

    async def add(self, things: Sequence[tuple[str, bytes]]) -> None:
        added = [msgspec.json.decode(data, type=Subscription) for _, data in things]
        await in_thread(self._write, sorted(added, key=lambda one: one.id))

    def _write(self, added: Sequence[Subscription]) -> None:
        text = self._path.read_bytes().decode() if self._path.exists() else ""
        for one in added:
            gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
            keys = "".join(f"{key} = {written(value)}\n" for key, value in table_of(one).items())
            text += f"{gap}[[{TABLE}]]\n{keys}"
        found = {one.id: one for one in read_text(text).found}
        if any(found.get(one.id) != one for one in added):
            raise StorageError(f"{self._path} cannot be added to; move it away")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path, text.encode())
