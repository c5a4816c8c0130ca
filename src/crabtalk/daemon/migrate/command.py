"""The `crabtalkd migrate` command: locks both sides, runs the migration, and shows progress and
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

# Minimum seconds between two updates of the progress line.
UPDATE_INTERVAL_SECONDS = 0.1


async def run_migration(home: Path, source: str, target: str) -> list[MigrationOutcome]:
    """Raises MigrationError, HomeError, StorageError and MemoryStoreError."""
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
    """Add messages that a killed daemon had accepted to the logs: only logs are copied."""
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
    """Raises UsageError. Errors do not quote a url: it may contain a password."""
    urls = {"--from": source, "--to": target}
    for option, url in urls.items():
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
    """Whether the part before the path consists of names and numeric ports."""
    try:
        netloc = urlsplit(url).netloc
    except ValueError:
        return False
    hosts = netloc.rpartition("@")[2].split(",")
    ports = [host.rpartition(":")[2] for host in hosts if ":" in host and not host.endswith("]")]
    return ("@" not in url or "@" in netloc) and all(port.isdecimal() for port in ports)


def format_outcomes(outcomes: Sequence[MigrationOutcome]) -> str:
    rows = [("", "source", "target", "hash", "")]
    for outcome in outcomes:
        hashes = (
            outcome.source_hash
            if outcome.is_same
            else f"{outcome.source_hash} {outcome.target_hash}"
        )
        verdict = "same" if outcome.is_same else "DIFFERENT"
        rows.append((outcome.kind, str(outcome.source), str(outcome.target), hashes, verdict))
    return format_table(rows)


def encode_outcomes(outcomes: Sequence[MigrationOutcome]) -> str:
    kinds = {
        outcome.kind: {**outcome._asdict(), "is_same": outcome.is_same} for outcome in outcomes
    }
    for fields in kinds.values():
        del fields["kind"]
    return json.dumps({"ok": all(outcome.is_same for outcome in outcomes), "kinds": kinds})


def format_advice(home: Path, url: str) -> str:
    """How to make the daemon use the target. The password in the url is masked."""
    for secret in StorageSettings(url).secrets:
        url = url.replace(secret, MASK)
    return (
        f"to use it, write this into {home / 'config.toml'}, and start the daemon:\n\n"
        f"[storage]\nurl = {json.dumps(url, ensure_ascii=False)}\n\n"
        "what it was copied from is as it was; keep it until you are sure"
    )


class WarningPrinter(logging.Handler):
    """Prints warnings of the migration to standard error, each once."""

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
        # The storage's own warning repeats ours about lines that are set aside.
        text = escape_controls(record.getMessage())
        if text not in self._printed and record.name != "crabtalk.storage.log_file":
            self._printed.add(text)
            clear = "\r\x1b[K" if sys.stderr.isatty() else ""
            click.echo(f"{clear}crabtalkd: {text}", err=True)


class MigrationProgressBar:
    """Shows the progress in one line that is overwritten. Only on a terminal."""

    def __init__(self) -> None:
        self._shown_at = 0.0
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> "MigrationProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown_at:
            click.echo("\r\x1b[K", nl=False, err=True)

    def update(self, step: str, done: int, total: int) -> None:
        if self._is_terminal and time.monotonic() - self._shown_at >= UPDATE_INTERVAL_SECONDS:
            self._shown_at = time.monotonic()
            click.echo(f"\r\x1b[K{step}: {done} of {total}", nl=False, err=True)
