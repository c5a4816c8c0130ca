"""The `crabtalk-cron` command as a process."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from apps.cron.tests.fake_daemon import PATIENCE
from tests.forked_programs import PIPE, ForkedProcess, ForkedProgram

PROGRAM = Path(sys.executable).with_name("crabtalk-cron")
CRON_LAUNCHER = ForkedProgram(
    *(PROGRAM, "crabtalk_cron.cli:main", "crabtalk.service", "crabtalk.client"),
    *("crabtalk_cron.forecast", "crabtalk_cron.runner", "crabtalk_cron.file_watcher"),
)


@dataclass(frozen=True, slots=True)
class CronOutcome:
    code: int | None
    out: str
    err: str

    @property
    def output(self) -> str:
        """Standard output; the command must have succeeded without a message on stderr."""
        assert (self.code, self.err) == (0, ""), self
        return self.out


async def run_cron(*words: str | Path, **env: str) -> CronOutcome:
    return CronOutcome(*await CRON_LAUNCHER.run_and_capture(*words, env={**os.environ, **env}))


@dataclass
class RunningCron:
    """`crabtalk-cron run`, and its log on stderr."""

    process: ForkedProcess
    lines: list[str] = field(default_factory=list)

    async def wait_for_line(self, text: str) -> str:
        """Wait for the next line with this text."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while line := (await self.process.stderr.readline()).decode():
                self.lines.append(line)
                if text in line:
                    return line
        raise AssertionError(f"it ended without {text!r}: {self.lines}")

    async def stop_with(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            self.lines += (await self.process.stderr.read()).decode().splitlines()
            return await self.process.wait()


@asynccontextmanager
async def start_cron(home: Path, *words: str) -> AsyncIterator[RunningCron]:
    process = CRON_LAUNCHER.start("run", "--home", home, *words, stderr=PIPE)
    running = RunningCron(process)
    try:
        await running.wait_for_line("entries in")
        yield running
    finally:
        if process.returncode is None:
            await running.stop_with(signal.SIGKILL)
