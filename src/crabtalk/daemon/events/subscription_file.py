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
from crabtalk.transport import remove_stale_temporary_files, replace_file

TABLE_NAME = "subscription"
FIELD_TYPES: dict[str, type] = {"id": int, "source": str, "target_agent": str, "once": bool}
# Who set it up. Files of earlier versions do not say: then it is a stranger.
CREATOR_FIELD = "created_by"
TOML_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # TOML's lines, which are fewer than Python's
T = TypeVar("T")


class ParsedSubscriptions(msgspec.Struct, frozen=True):
    """What a text says, and what that means."""

    text: str = ""
    document: dict[str, Any] = msgspec.field(default_factory=dict)
    found: tuple[Subscription, ...] = ()
    # Its tables are written as ours are, so that one more can stand at its end.
    is_appendable: bool = False


class SubscriptionFile:
    """A home's own. A storage that many daemons share has a table in its place.

    Callers take care that no two calls overlap. Each raises StorageError, and has changed nothing
    then. Cancelled, a call goes on.
    """

    is_shared = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parsed = (
            ParsedSubscriptions()
        )  # as it was last read or written; a text that is the same says so
        self._last_id = (
            0  # the highest number given out: one that was removed is not given out again
        )

    async def load(self) -> list[Subscription]:
        """All there are; none without a file."""
        return await self._run_in_thread(self._load)

    async def list_for_source(self, source: str) -> list[Subscription]:
        return [one for one in await self.load() if one.source == source]

    async def add(
        self, source: str, target_agent: str, *, once: bool, created_by: str = ""
    ) -> Subscription:
        return await self._run_in_thread(lambda: self._add(source, target_agent, once, created_by))

    async def remove(self, ids: Collection[int]) -> set[int]:
        """Those that were there. Whoever removed one has it to themselves."""
        return await self._run_in_thread(lambda: self._remove(ids))

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        def told() -> T:
            try:
                return work()
            except OSError as error:
                raise StorageError(
                    f"cannot use {self._path}: {error.strerror}; check the disk and its rights"
                ) from None

        return await asyncio.to_thread(told)

    def _load(self) -> list[Subscription]:
        remove_stale_temporary_files(self._path.parent)
        found = self._read().found
        self._last_id = max([self._last_id, *(one.id for one in found)])
        return list(found)

    def _add(self, source: str, target_agent: str, once: bool, created_by: str) -> Subscription:
        now = self._read()
        number = max([self._last_id, *(one.id for one in now.found)]) + 1
        new = Subscription(number, source, target_agent, once, created_by)
        table = to_toml_table(new)
        gap = "" if not now.text else "\n" if now.text.endswith("\n") else "\n\n"
        lines = "".join(f"{key} = {format_toml_value(value)}\n" for key, value in table.items())
        wanted = ParsedSubscriptions(
            f"{now.text}{gap}[[{TABLE_NAME}]]\n{lines}",
            {**now.document, TABLE_NAME: [*now.document.get(TABLE_NAME, []), table]},
            (*now.found, new),
            is_appendable=True,
        )
        self._write(wanted, is_sure=now.is_appendable)
        self._last_id = number
        return new

    def _remove(self, ids: Collection[int]) -> set[int]:
        now = self._read()
        gone = {number for number, one in enumerate(now.found) if one.id in ids}
        if gone:
            left = [t for number, t in enumerate(now.document[TABLE_NAME]) if number not in gone]
            wanted = msgspec.structs.replace(
                now,
                text=remove_tables(now.text, gone),
                document={**now.document, TABLE_NAME: left},
                found=tuple(one for one in now.found if one.id not in ids),
            )
            self._write(wanted, is_sure=False)
        return {now.found[number].id for number in gone}

    def _read(self) -> ParsedSubscriptions:
        if self._path.exists() and not self._path.is_file():  # reading a pipe would never end
            raise StorageError(f"{self._path} is not a file; move it away")
        try:
            text = self._path.read_bytes().decode()
            if text != self._parsed.text:
                self._parsed = parse_subscriptions(text)
        except FileNotFoundError:
            self._parsed = ParsedSubscriptions()
        except (ValueError, RecursionError) as error:
            raise StorageError(
                f"{self._path} cannot be used: {error}; mend it and reload, or move it away"
            ) from None
        return self._parsed

    def _write(self, wanted: ParsedSubscriptions, *, is_sure: bool) -> None:
        """Once it is sure that the text says so: tables can be written in more ways than ours."""
        if not is_sure and not parses_to(wanted.text, wanted.document):
            raise StorageError(
                f"{self._path} cannot be changed safely; "
                f"write each subscription as a [[{TABLE_NAME}]] table of its own, and reload"
            )
        if not self._path.parent.exists():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_directory(self._path.parent.parent)
        replace_file(self._path, wanted.text.encode())
        self._parsed = wanted


def parse_subscriptions(text: str) -> ParsedSubscriptions:
    """Raises ValueError, saying what is wrong."""
    import tomllib  # late: most homes have no such file

    document = tomllib.loads(text)
    return ParsedSubscriptions(text, document, tuple(parse_tables(document)))


def parses_to(text: str, document: dict[str, Any]) -> bool:
    import tomllib

    try:
        return {TABLE_NAME: [], **tomllib.loads(text)} == document
    except tomllib.TOMLDecodeError:
        return False


def parse_tables(document: dict[str, Any]) -> list[Subscription]:
    """Raises ValueError, saying which is wrong and how."""
    tables = document.get(TABLE_NAME, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"write subscriptions as [[{TABLE_NAME}]]")
    found: dict[int, Subscription] = {}
    for place, table in enumerate(tables, 1):
        given = {"once": False, **{key: table[key] for key in FIELD_TYPES if key in table}}
        for key, kind in FIELD_TYPES.items():
            if type(given.get(key)) is not kind or given[key] == "":
                raise ValueError(f"{key} of its subscription {place} is missing or not right")
        creator = table.get(CREATOR_FIELD, "")
        if not isinstance(creator, str):
            raise ValueError(f"{CREATOR_FIELD} of its subscription {place} is not right")  # noqa: TRY004
        one = Subscription(**given, created_by=creator)
        if one.id < 0:
            raise ValueError(f"the id of its subscription {place} is below zero")
        if one.id in found:
            raise ValueError(f"two of its subscriptions have the id {one.id}")
        found[one.id] = one
    return list(found.values())


def to_toml_table(one: Subscription) -> dict[str, Any]:
    table = {key: getattr(one, key) for key in FIELD_TYPES}
    return table | ({CREATOR_FIELD: one.created_by} if one.created_by else {})


def remove_tables(text: str, gone: Collection[int]) -> str:
    """The text but for some of its tables, counted from 0, and the comments right above them.

    Comments that stand apart stay.
    """
    lines = TOML_LINE.findall(text)
    headers = [n for n, line in enumerate(lines) if line.lstrip().startswith("[")]
    bounds = [*(find_comment_start(lines, header) for header in headers), len(lines)]
    kept = lines[: bounds[0]]
    number = -1
    for header, (start, end) in zip(headers, pairwise(bounds), strict=True):
        name = "".join(lines[header].split())
        number += name.startswith(f"[[{TABLE_NAME}]]")
        # A table within it goes with it.
        is_gone = number in gone and name.lstrip("[").startswith(TABLE_NAME)
        kept += find_trailing_comments(lines[start:end]) if is_gone else lines[start:end]
    return "".join(kept)


def find_comment_start(lines: list[str], start: int) -> int:
    """Where the comments right above a header begin."""
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return start


def find_trailing_comments(table: list[str]) -> list[str]:
    """What stands after the last line of a table that says something, if that is a comment."""
    said = [n for n, line in enumerate(table) if line.strip() and line.lstrip()[0] != "#"]
    after = table[said[-1] + 1 :]
    return after if any(line.strip() for line in after) else []


def format_toml_value(value: str | int | bool) -> str:
    """JSON's scalars are TOML's, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
