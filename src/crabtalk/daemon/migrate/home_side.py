"""HomeSide: reads and writes a home for a migration: agents, memories and subscriptions as bytes.

Logs are in conversation_files.py.
"""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from crabtalk.daemon.events.subscription_file import (
    TABLE_NAME,
    SubscriptionFile,
    format_toml_value,
    parse_subscriptions,
    to_toml_table,
)
from crabtalk.hooks.memory_pool import FileMemoryStore
from crabtalk.memory import Memory
from crabtalk.storage import AgentError, StorageError, Subscription, check_agent_name
from crabtalk.storage.agent_files import is_agent_file
from crabtalk.storage.file_storage import run_in_thread
from crabtalk.transport import replace_file

from .conversation_files import ConversationLogFiles, is_text
from .migration import ByteItems, ConversationItems, ItemDigest, hash_bytes

log = logging.getLogger(__name__)


class HomeSide:
    def __init__(self, home: Path) -> None:
        self.name = str(home)
        self.items: Mapping[str, ByteItems] = {
            "agents": AgentFileItems(home / "agents"),
            "memories": MemoryFileItems(home / "memory"),
            "subscriptions": SubscriptionFileItems(home / "events" / "subscriptions.toml"),
        }
        self.logs: ConversationItems = ConversationLogFiles(home / "sessions")


class AgentFileItems:
    """Agent files, including invalid ones: those can be corrected in the target too."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def names(self) -> list[str]:
        return await run_in_thread(self._names)

    def _names(self) -> list[str]:
        names: list[str] = []
        try:
            files = sorted(path.name for path in self._directory.iterdir())
        except FileNotFoundError:
            return names
        for file in filter(is_agent_file, files):
            if problem := self._find_problem(file):
                shown = os.fsencode(file).decode(errors="replace")
                log.warning("agents/%s is left out: %s", shown, problem)
            else:
                names.append(file.removesuffix(".toml"))
        return sorted(names)

    def _find_problem(self, file: str) -> str:
        try:
            check_agent_name(file.removesuffix(".toml"))
        except AgentError as error:
            return str(error)
        path = self._directory / file
        if not path.is_file():
            return "it is no file"
        return "" if is_text(path.read_bytes()) else "it is no text"

    async def digests(self, names: Sequence[str]) -> list[ItemDigest]:
        return [ItemDigest(hash_bytes(await self.read(name))) for name in names]

    async def read(self, name: str) -> bytes:
        return await run_in_thread(self._path(name).read_bytes)

    async def add(self, items: Sequence[tuple[str, bytes]]) -> None:
        for name, data in items:
            await run_in_thread(self._write, name, data)

    def _write(self, name: str, data: bytes) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path(name), data, 0o600)

    def _path(self, name: str) -> Path:
        check_agent_name(name)
        return self._directory / f"{name}.toml"


class MemoryFileItems:
    """Memories in the CRMEM format, with the entries of their journals."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def names(self) -> list[str]:
        return sorted(await FileMemoryStore(self._directory).list_names())

    async def digests(self, names: Sequence[str]) -> list[ItemDigest]:
        return [ItemDigest(hash_bytes(await self.read(name))) for name in names]

    async def read(self, name: str) -> bytes:
        memory = await asyncio.to_thread(Memory.open_read_only, self._path(name))
        return memory.encode()

    async def add(self, items: Sequence[tuple[str, bytes]]) -> None:
        for name, data in items:
            await asyncio.to_thread(Memory.create, self._path(name), data)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.crmem"


class SubscriptionFileItems:
    """Subscriptions, named by their ids. Comments in the file are not copied."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._subscriptions: dict[str, Subscription] = {}

    async def names(self) -> list[str]:
        self._subscriptions = {
            str(subscription.id): subscription
            for subscription in await SubscriptionFile(self._path).load()
        }
        return sorted(self._subscriptions)

    async def digests(self, names: Sequence[str]) -> list[ItemDigest]:
        return [ItemDigest(hash_bytes(await self.read(name))) for name in names]

    async def read(self, name: str) -> bytes:
        return msgspec.json.encode(self._subscriptions[name])

    async def add(self, items: Sequence[tuple[str, bytes]]) -> None:
        added = [msgspec.json.decode(data, type=Subscription) for _, data in items]
        await run_in_thread(self._write, sorted(added, key=lambda subscription: subscription.id))

    def _write(self, added: Sequence[Subscription]) -> None:
        text = self._path.read_bytes().decode() if self._path.exists() else ""
        for subscription in added:
            gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
            keys = "".join(
                f"{key} = {format_toml_value(value)}\n"
                for key, value in to_toml_table(subscription).items()
            )
            text += f"{gap}[[{TABLE_NAME}]]\n{keys}"
        parsed = {
            subscription.id: subscription
            for subscription in parse_subscriptions(text).subscriptions
        }
        if any(parsed.get(subscription.id) != subscription for subscription in added):
            raise StorageError(f"{self._path} cannot be added to; move it away")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path, text.encode())
