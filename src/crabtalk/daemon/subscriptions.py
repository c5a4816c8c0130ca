"""Subscriptions: who runs when what is published, kept in `events/subscriptions.toml`.

The file is a person's as much as ours: a change touches the table it is about and no other,
comments included, and a file that cannot be read is left as it is. It knows nothing of agents and
runs.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from crabtalk.storage import StorageError, Subscription
from crabtalk.transport import remove_leftovers, replace_file

TABLE = "subscription"
KINDS: dict[str, type] = {"id": int, "source": str, "target_agent": str, "once": bool}
# Who set it up. Files of earlier versions do not say: then it is a stranger.
CREATOR = "created_by"
LINE = re.compile(r"[^\n]*\n|[^\n]+")  # TOML's lines, which are fewer than Python's
T = TypeVar("T")


class Reading(msgspec.Struct, frozen=True):
    """What a text says, and what that means."""

    text: str = ""
    document: dict[str, Any] = msgspec.field(default_factory=dict)
    found: tuple[Subscription, ...] = ()
    # Its tables are written as ours are, so that one more can stand at its end.
    can_grow: bool = False


class SubscriptionFile:
    """A home's own. A storage that many daemons share has a table in its place.

    Callers take care that no two calls overlap. Each raises StorageError, and has changed nothing
    then. Cancelled, a call goes on.
    """

    is_shared = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = Reading()  # as it was last read or written; a text that is the same says so
        self._last = 0  # the highest number given out: one that was removed is not given out again

    async def load(self) -> list[Subscription]:
        """All there are; none without a file."""
        return await self._in_thread(self._load)

    async def of(self, source: str) -> list[Subscription]:
        return [one for one in await self.load() if one.source == source]

    async def add(
        self, source: str, target_agent: str, *, once: bool, created_by: str = ""
    ) -> Subscription:
        return await self._in_thread(lambda: self._add(source, target_agent, once, created_by))

    async def remove(self, ids: Collection[int]) -> set[int]:
        """Those that were there. Whoever removed one has it to themselves."""
        return await self._in_thread(lambda: self._remove(ids))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def told() -> T:
            try:
                return work()
            except OSError as error:
                raise StorageError(
                    f"cannot use {self._path}: {error.strerror}; check the disk and its rights"
                ) from None

        return await asyncio.to_thread(told)

    def _load(self) -> list[Subscription]:
        remove_leftovers(self._path.parent)
        found = self._read().found
        self._last = max([self._last, *(one.id for one in found)])
        return list(found)

    def _add(self, source: str, target_agent: str, once: bool, created_by: str) -> Subscription:
        now = self._read()
        number = max([self._last, *(one.id for one in now.found)]) + 1
        new = Subscription(number, source, target_agent, once, created_by)
        table = table_of(new)
        gap = "" if not now.text else "\n" if now.text.endswith("\n") else "\n\n"
        lines = "".join(f"{key} = {written(value)}\n" for key, value in table.items())
        wanted = Reading(
            f"{now.text}{gap}[[{TABLE}]]\n{lines}",
            {**now.document, TABLE: [*now.document.get(TABLE, []), table]},
            (*now.found, new),
            can_grow=True,
        )
        self._write(wanted, is_sure=now.can_grow)
        self._last = number
        return new

    def _remove(self, ids: Collection[int]) -> set[int]:
        now = self._read()
        gone = {number for number, one in enumerate(now.found) if one.id in ids}
        if gone:
            left = [t for number, t in enumerate(now.document[TABLE]) if number not in gone]
            wanted = msgspec.structs.replace(
                now,
                text=without(now.text, gone),
                document={**now.document, TABLE: left},
                found=tuple(one for one in now.found if one.id not in ids),
            )
            self._write(wanted, is_sure=False)
        return {now.found[number].id for number in gone}

    def _read(self) -> Reading:
        if self._path.exists() and not self._path.is_file():  # reading a pipe would never end
            raise StorageError(f"{self._path} is not a file; move it away")
        try:
            text = self._path.read_bytes().decode()
            if text != self._known.text:
                self._known = read_text(text)
        except FileNotFoundError:
            self._known = Reading()
        except (ValueError, RecursionError) as error:
            raise StorageError(
                f"{self._path} cannot be used: {error}; mend it and reload, or move it away"
            ) from None
        return self._known

    def _write(self, wanted: Reading, *, is_sure: bool) -> None:
        """Once it is sure that the text says so: tables can be written in more ways than ours."""
        if not is_sure and not says(wanted.text, wanted.document):
            raise StorageError(
                f"{self._path} cannot be changed safely; "
                f"write each subscription as a [[{TABLE}]] table of its own, and reload"
            )
        if not self._path.parent.exists():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync(self._path.parent.parent)
        replace_file(self._path, wanted.text.encode())
        self._known = wanted


def read_text(text: str) -> Reading:
    """Raises ValueError, saying what is wrong."""
    import tomllib  # late: most homes have no such file

    document = tomllib.loads(text)
    return Reading(text, document, tuple(read_tables(document)))


def says(text: str, document: dict[str, Any]) -> bool:
    import tomllib

    try:
        return {TABLE: [], **tomllib.loads(text)} == document
    except tomllib.TOMLDecodeError:
        return False


def read_tables(document: dict[str, Any]) -> list[Subscription]:
    """Raises ValueError, saying which is wrong and how."""
    tables = document.get(TABLE, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"write subscriptions as [[{TABLE}]]")
    found: dict[int, Subscription] = {}
    for place, table in enumerate(tables, 1):
        given = {"once": False, **{key: table[key] for key in KINDS if key in table}}
        for key, kind in KINDS.items():
            if type(given.get(key)) is not kind or given[key] == "":
                raise ValueError(f"{key} of its subscription {place} is missing or not right")
        creator = table.get(CREATOR, "")
        if not isinstance(creator, str):
            raise ValueError(f"{CREATOR} of its subscription {place} is not right")  # noqa: TRY004
        one = Subscription(**given, created_by=creator)
        if one.id < 0:
            raise ValueError(f"the id of its subscription {place} is below zero")
        if one.id in found:
            raise ValueError(f"two of its subscriptions have the id {one.id}")
        found[one.id] = one
    return list(found.values())


def table_of(one: Subscription) -> dict[str, Any]:
    table = {key: getattr(one, key) for key in KINDS}
    return table | ({CREATOR: one.created_by} if one.created_by else {})


def without(text: str, gone: Collection[int]) -> str:
    """The text but for some of its tables, counted from 0, and the comments right above them.

    Comments that stand apart stay.
    """
    lines = LINE.findall(text)
    headers = [n for n, line in enumerate(lines) if line.lstrip().startswith("[")]
    bounds = [*(above(lines, header) for header in headers), len(lines)]
    kept = lines[: bounds[0]]
    number = -1
    for header, (start, end) in zip(headers, pairwise(bounds), strict=True):
        name = "".join(lines[header].split())
        number += name.startswith(f"[[{TABLE}]]")
        # A table within it goes with it.
        is_gone = number in gone and name.lstrip("[").startswith(TABLE)
        kept += rest(lines[start:end]) if is_gone else lines[start:end]
    return "".join(kept)


def above(lines: list[str], start: int) -> int:
    """Where the comments right above a header begin."""
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return start


def rest(table: list[str]) -> list[str]:
    """What stands after the last line of a table that says something, if that is a comment."""
    said = [n for n, line in enumerate(table) if line.strip() and line.lstrip()[0] != "#"]
    after = table[said[-1] + 1 :]
    return after if any(line.strip() for line in after) else []


def written(value: str | int | bool) -> str:
    """JSON's scalars are TOML's, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
