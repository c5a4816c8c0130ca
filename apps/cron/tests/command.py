"""The `crabtalk-cron` command as a process of its own."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from apps.cron.tests.peer import PATIENCE
from tests.warm import PIPE, Program, Started

PROGRAM = Path(sys.executable).with_name("crabtalk-cron")
WARM = Program(
    *(PROGRAM, "crabtalk_cron.cli:main", "crabtalk.component", "crabtalk.client"),
    *("crabtalk_cron.forecast", "crabtalk_cron.runner", "crabtalk_cron.watcher"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int | None
    out: str
    err: str

    @property
    def answer(self) -> str:
        """What it printed, having succeeded without another word."""
        assert (self.code, self.err) == (0, ""), self
        return self.out


async def called(*words: str | Path, **env: str) -> Outcome:
    return Outcome(*await WARM.said(*words, env={**os.environ, **env}))


@dataclass
class Running:
    """`crabtalk-cron run`, and what it has logged on stderr."""

    process: Started
    lines: list[str] = field(default_factory=list)

    async def until(self, words: str) -> str:
        """The next line with these words."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while line := (await self.process.stderr.readline()).decode():
                self.lines.append(line)
                if words in line:
                    return line
        raise AssertionError(f"it ended without {words!r}: {self.lines}")

    async def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            self.lines += (await self.process.stderr.read()).decode().splitlines()
            return await self.process.wait()


@asynccontextmanager
async def running(home: Path, *words: str) -> AsyncIterator[Running]:
    process = WARM.start("run", "--home", home, *words, stderr=PIPE)
    found = Running(process)
    try:
        await found.until("entries in")
        yield found
    finally:
        if process.returncode is None:
            await found.end(signal.SIGKILL)
