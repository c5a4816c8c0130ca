"""The `crabtalk-web` command as a separate process."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("crabtalk-web")
PIPE = asyncio.subprocess.PIPE
PATIENCE = 25


@dataclass(frozen=True, slots=True)
class WebCommandResult:
    code: int | None
    out: str
    err: str

    @property
    def output(self) -> str:
        """Its output; asserts that it succeeded without errors."""
        assert (self.code, self.err) == (0, ""), self
        return self.out


async def run_web_command(*words: str | Path, **env: str) -> WebCommandResult:
    process = await asyncio.create_subprocess_exec(
        PROGRAM, *words, stdout=PIPE, stderr=PIPE, env={**os.environ, **env}
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    return WebCommandResult(process.returncode, out.decode(), err.decode())


@dataclass
class RunningWebCommand:
    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)

    async def wait_for_line(self, pattern: str) -> re.Match[str]:
        """Wait for a line with this text."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while line := (await self.process.stdout.readline()).decode():
                self.lines.append(line)
                if found := re.search(pattern, line):
                    return found
        raise AssertionError(f"it ended without {pattern!r}: {self.lines}")

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            await self.process.stdout.read()
            return await self.process.wait()


@asynccontextmanager
async def start_web_command(log: Path, *words: str | Path) -> AsyncIterator[RunningWebCommand]:
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(PROGRAM, *words, stdout=PIPE, stderr=errors)
    found = RunningWebCommand(process)
    try:
        yield found
    finally:
        if process.returncode is None:
            await found.stop(signal.SIGKILL)
