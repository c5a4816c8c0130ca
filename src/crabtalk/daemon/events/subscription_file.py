"""SubscriptionFile: stores event subscriptions in `events/subscriptions.toml`.

People edit this file too: a change touches only the table it is about and that table's comments,
and a file that cannot be parsed is not changed. It knows nothing of agents and runs.
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
# The sender that created it. Files of earlier versions lack it: then it counts as a stranger.
CREATOR_FIELD = "created_by"
TOML_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # TOML has fewer line endings than str.splitlines
T = TypeVar("T")


class ParsedSubscriptions(msgspec.Struct, frozen=True):
    """The file's text, its parsed document and the subscriptions in it."""

    text: str = ""
    document: dict[str, Any] = msgspec.field(default_factory=dict)
    subscriptions: tuple[Subscription, ...] = ()
    # Its tables have our format, so that another can be appended without a check.
    is_appendable: bool = False


class SubscriptionFile:
    """The SubscriptionStore of one home. A storage that several daemons share uses a table instead.

    Callers must not let two calls overlap. A call that raises StorageError has changed nothing.
    Calls complete when cancelled.
    """

    is_shared = False

    def __init__(self, path: Path) -> None:
        self._path = path
        # As last read or written; not parsed again while the text is the same.
        self._parsed = ParsedSubscriptions()
        # The highest id assigned so far: ids of removed subscriptions are not used again.
        self._last_id = 0

    async def load(self) -> list[Subscription]:
        """All subscriptions; none if there is no file."""
        return await self._run_in_thread(self._load)

    async def list_for_source(self, source: str) -> list[Subscription]:
        return [subscription for subscription in await self.load() if subscription.source == source]

    async def add(
        self, source: str, target_agent: str, *, once: bool, created_by: str = ""
    ) -> Subscription:
        return await self._run_in_thread(lambda: self._add(source, target_agent, once, created_by))

    async def remove(self, ids: Collection[int]) -> set[int]:
        """Remove those that exist, and return their ids. Each id is returned to one caller only."""
        return await self._run_in_thread(lambda: self._remove(ids))

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        def run() -> T:
            try:
                return work()
            except OSError as error:
                raise StorageError(
                    f"cannot use {self._path}: {error.strerror}; check the disk and its rights"
                ) from None

        return await asyncio.to_thread(run)

    def _load(self) -> list[Subscription]:
        remove_stale_temporary_files(self._path.parent)
        subscriptions = self._read().subscriptions
        self._last_id = max([self._last_id, *(subscription.id for subscription in subscriptions)])
        return list(subscriptions)

    def _add(self, source: str, target_agent: str, once: bool, created_by: str) -> Subscription:
        parsed = self._read()
        number = (
            max([self._last_id, *(subscription.id for subscription in parsed.subscriptions)]) + 1
        )
        new = Subscription(number, source, target_agent, once, created_by)
        table = to_toml_table(new)
        gap = "" if not parsed.text else "\n" if parsed.text.endswith("\n") else "\n\n"
        lines = "".join(f"{key} = {format_toml_value(value)}\n" for key, value in table.items())
        wanted = ParsedSubscriptions(
            f"{parsed.text}{gap}[[{TABLE_NAME}]]\n{lines}",
            {**parsed.document, TABLE_NAME: [*parsed.document.get(TABLE_NAME, []), table]},
            (*parsed.subscriptions, new),
            is_appendable=True,
        )
        self._write(wanted, is_sure=parsed.is_appendable)
        self._last_id = number
        return new

    def _remove(self, ids: Collection[int]) -> set[int]:
        parsed = self._read()
        gone = {
            index
            for index, subscription in enumerate(parsed.subscriptions)
            if subscription.id in ids
        }
        if gone:
            left = [t for index, t in enumerate(parsed.document[TABLE_NAME]) if index not in gone]
            wanted = msgspec.structs.replace(
                parsed,
                text=remove_tables(parsed.text, gone),
                document={**parsed.document, TABLE_NAME: left},
                subscriptions=tuple(
                    subscription
                    for subscription in parsed.subscriptions
                    if subscription.id not in ids
                ),
            )
            self._write(wanted, is_sure=False)
        return {parsed.subscriptions[index].id for index in gone}

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
        """Write the file. Unless `is_sure`, first check that the text parses to the document: TOML
        has more ways to write tables than our edits handle."""
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
    """Raises ValueError with a sentence about the error."""
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
    """Raises ValueError with a sentence about the first subscription that is invalid."""
    tables = document.get(TABLE_NAME, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"write subscriptions as [[{TABLE_NAME}]]")
    by_id: dict[int, Subscription] = {}
    for position, table in enumerate(tables, 1):
        fields = {"once": False, **{key: table[key] for key in FIELD_TYPES if key in table}}
        for key, kind in FIELD_TYPES.items():
            if type(fields.get(key)) is not kind or fields[key] == "":
                raise ValueError(f"{key} of its subscription {position} is missing or not right")
        creator = table.get(CREATOR_FIELD, "")
        if not isinstance(creator, str):
            raise ValueError(f"{CREATOR_FIELD} of its subscription {position} is not right")  # noqa: TRY004
        subscription = Subscription(**fields, created_by=creator)
        if subscription.id < 0:
            raise ValueError(f"the id of its subscription {position} is below zero")
        if subscription.id in by_id:
            raise ValueError(f"two of its subscriptions have the id {subscription.id}")
        by_id[subscription.id] = subscription
    return list(by_id.values())


def to_toml_table(subscription: Subscription) -> dict[str, Any]:
    table = {key: getattr(subscription, key) for key in FIELD_TYPES}
    return table | ({CREATOR_FIELD: subscription.created_by} if subscription.created_by else {})


def remove_tables(text: str, gone: Collection[int]) -> str:
    """Remove some subscription tables, counted from 0, with the comments directly above them.

    Comments separated by an empty line stay.
    """
    lines = TOML_LINE.findall(text)
    headers = [n for n, line in enumerate(lines) if line.lstrip().startswith("[")]
    bounds = [*(find_comment_start(lines, header) for header in headers), len(lines)]
    result = lines[: bounds[0]]
    number = -1
    for header, (start, end) in zip(headers, pairwise(bounds), strict=True):
        name = "".join(lines[header].split())
        number += name.startswith(f"[[{TABLE_NAME}]]")
        # Remove its subtables too.
        is_gone = number in gone and name.lstrip("[").startswith(TABLE_NAME)
        result += find_trailing_comments(lines[start:end]) if is_gone else lines[start:end]
    return "".join(result)


def find_comment_start(lines: list[str], start: int) -> int:
    """The first line of the comments directly above a header."""
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return start


def find_trailing_comments(table: list[str]) -> list[str]:
    """The lines after the last key of a table, if they have a comment."""
    content_lines = [n for n, line in enumerate(table) if line.strip() and line.lstrip()[0] != "#"]
    after = table[content_lines[-1] + 1 :]
    return after if any(line.strip() for line in after) else []


def format_toml_value(value: str | int | bool) -> str:
    """JSON scalars are valid TOML, except for the character U+007F."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
