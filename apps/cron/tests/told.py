"""A runner that goes by a clock of the test's, and what it logs."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from apps.cron.tests.moved import MovedClock
from apps.cron.tests.peer import PATIENCE, write
from crabtalk_cron.runner import Runner

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()
UTC_ALL = 'tz = "UTC"\n\n'


class Told(logging.Handler):
    """What is logged, to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._came = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self._came.set()

    async def until(self, words: str, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while sum(words in line for line in self.lines) < times:
                self._came.clear()
                await self._came.wait()


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    handler = Told()
    logger = logging.getLogger("crabtalk_cron")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@asynccontextmanager
async def running(home: Path, text: str, start: float = NOON) -> AsyncIterator[MovedClock]:
    """A runner that has read the file and looked at the clock."""
    write(home, UTC_ALL + text)
    clock = MovedClock(start)
    task = asyncio.ensure_future(Runner(home, clock).run())
    try:
        await clock.move(start)
        yield clock
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
