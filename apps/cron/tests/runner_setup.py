"""A runner with a manual clock, and its log."""

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
    """Records log lines, so that a test can wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._record_added = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self._record_added.set()

    async def wait_for_line(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while sum(text in line for line in self.lines) < times:
                self._record_added.clear()
                await self._record_added.wait()


@pytest.fixture
async def log_recorder() -> AsyncIterator[LogRecorder]:
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
    """Start a runner, and return when it has read the file and the clock."""
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
