"""A runner that goes by a clock of the test's, and what it logs."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from apps.cron.tests.fake_daemon import PATIENCE, write_crons
from apps.cron.tests.manual_clock import CronManualClock
from crabtalk_cron.runner import CronRunner

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()
UTC_ALL = 'tz = "UTC"\n\n'


class LogRecorder(logging.Handler):
    """What is logged, to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._record_added = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self._record_added.set()

    async def wait_for_line(self, words: str, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while sum(words in line for line in self.lines) < times:
                self._record_added.clear()
                await self._record_added.wait()


@pytest.fixture
async def told() -> AsyncIterator[LogRecorder]:
    handler = LogRecorder()
    logger = logging.getLogger("crabtalk_cron")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@asynccontextmanager
async def start_runner(
    home: Path, text: str, start: float = NOON
) -> AsyncIterator[CronManualClock]:
    """A runner that has read the file and looked at the clock."""
    write_crons(home, UTC_ALL + text)
    clock = CronManualClock(start)
    task = asyncio.ensure_future(CronRunner(home, clock).run())
    try:
        await clock.set_time(start)
        yield clock
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
