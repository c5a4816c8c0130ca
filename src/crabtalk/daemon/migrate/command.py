"""What `crabtalkd migrate` does: it has both sides to itself, says how far it is, and shows the
outcome."""

import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import click

from crabtalk.daemon.config.settings import (
    DATABASE_URL_PREFIXES,
    FILE_URL,
    StorageSettings,
)
from crabtalk.daemon.process.home import Home
from crabtalk.masking import MASK
from crabtalk.service.command_line import escape_controls, format_table
from crabtalk.storage import FileStorage

from .home_side import HomeSide
from .migration import MigrationError, MigrationOutcome, MigrationSide, copy_and_verify

# Seconds between two words of how far it is.
UPDATE_INTERVAL_SECONDS = 0.1


async def run_migration(home: Path, source: str, target: str) -> list[MigrationOutcome]:
    """Raises MigrationError, HomeError, StorageError and StoreError."""
    with WarningPrinter(), Home(home), MigrationProgressBar() as bar:
        files = HomeSide(home)
        if source == FILE_URL:
            await settle_accepted_messages(home)
        database = target if source == FILE_URL else source
        async with open_database_side(database, is_source=source != FILE_URL) as other:
            if source == FILE_URL:
                return await copy_and_verify(files, other, bar.update)
            return await copy_and_verify(other, files, bar.update)


async def settle_accepted_messages(home: Path) -> None:
    """Puts into the logs what a daemon that was killed had accepted: only logs are moved."""
    storage = FileStorage(home)
    try:
        for pair in await storage.list_unsettled():
            await storage.load_and_repair(pair)
    finally:
        await storage.close()


@asynccontextmanager
async def open_database_side(url: str, *, is_source: bool) -> AsyncIterator[MigrationSide]:
    try:
        from .database_side import database_side
    except ImportError as error:
        raise MigrationError(
            f"a database needs what is not installed ({error.name}): install crabtalk[postgres]"
        ) from None
    async with database_side(url, is_source=is_source) as side:
        yield side


def check_urls(source: str, target: str, home: Path) -> None:
    """Raises UsageError. No sentence has an address in it: it may hold a password."""
    given = {"--from": source, "--to": target}
    for option, url in given.items():
        if url != FILE_URL and not url.startswith(DATABASE_URL_PREFIXES):
            raise click.UsageError(f'{option} must be "file:" or "postgresql://HOST/DATABASE"')
        if not is_complete_url(url):
            raise click.UsageError(
                f"{option} is no address; in a name or password, write anything but letters and "
                "digits as %XX"
            )
    if (source == FILE_URL) == (target == FILE_URL):
        raise click.UsageError(
            'one of --from and --to must be "file:", the other a database; from one database to '
            "another, go by way of files, in a home of their own (--home)"
        )
    if source == FILE_URL and not home.is_dir():
        raise click.UsageError(f"there is no home {home}; name the one to take with --home")


def is_complete_url(url: str) -> bool:
    """Whether what comes before the path is names, and ports that are numbers."""
    try:
        place = urlsplit(url).netloc
    except ValueError:
        return False
    hosts = place.rpartition("@")[2].split(",")
    ports = [host.rpartition(":")[2] for host in hosts if ":" in host and not host.endswith("]")]
    return ("@" not in url or "@" in place) and all(port.isdecimal() for port in ports)


def format_outcomes(outcomes: Sequence[MigrationOutcome]) -> str:
    rows = [("", "source", "target", "hash", "")]
    for one in outcomes:
        hashes = one.source_hash if one.is_same else f"{one.source_hash} {one.target_hash}"
        said = "same" if one.is_same else "DIFFERENT"
        rows.append((one.kind, str(one.source), str(one.target), hashes, said))
    return format_table(rows)


def encode_outcomes(outcomes: Sequence[MigrationOutcome]) -> str:
    kinds = {one.kind: {**one._asdict(), "is_same": one.is_same} for one in outcomes}
    for known in kinds.values():
        del known["kind"]
    return json.dumps({"ok": all(one.is_same for one in outcomes), "kinds": kinds})


def format_advice(home: Path, url: str) -> str:
    """What makes the daemon use it. A password is for its owner to fill in."""
    for secret in StorageSettings(url).secrets:
        url = url.replace(secret, MASK)
    return (
        f"to use it, write this into {home / 'config.toml'}, and start the daemon:\n\n"
        f"[storage]\nurl = {json.dumps(url, ensure_ascii=False)}\n\n"
        "what it was copied from is as it was; keep it until you are sure"
    )


class WarningPrinter(logging.Handler):
    """What is left out, and why: a line on standard error, once each."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._printed: set[str] = set()
        self._logger = logging.getLogger("crabtalk")

    def __enter__(self) -> "WarningPrinter":
        self._logger.addHandler(self)
        self._logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        # What copies lines aside says so too.
        text = escape_controls(record.getMessage())
        if text not in self._printed and record.name != "crabtalk.storage.log_file":
            self._printed.add(text)
            clear = "\r\x1b[K" if sys.stderr.isatty() else ""
            click.echo(f"{clear}crabtalkd: {text}", err=True)


class MigrationProgressBar:
    """How far it is, in one line that is written over. Only on a terminal."""

    def __init__(self) -> None:
        self._shown_at = 0.0
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> "MigrationProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown_at:
            click.echo("\r\x1b[K", nl=False, err=True)

    def update(self, what: str, done: int, total: int) -> None:
        if self._is_terminal and time.monotonic() - self._shown_at >= UPDATE_INTERVAL_SECONDS:
            self._shown_at = time.monotonic()
            click.echo(f"\r\x1b[K{what}: {done} of {total}", nl=False, err=True)
