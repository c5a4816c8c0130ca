"""Gateway and relay as separate processes, which can be killed at any moment."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from apps.web.tests.relay.relay_process import PATIENCE
from tests.model_server import ROOT


class KillableProcess:
    """A program that is started, killed and started again. Its output is in a file."""

    def __init__(self, log: Path, *command: str) -> None:
        self._command = command
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )

    async def read_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return (await self._process.stdout.readline()).decode().strip()

    async def kill(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
        if self._process is not None:
            async with asyncio.timeout(PATIENCE):
                await self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None


def build_gateway_process(home: Path, log: Path) -> KillableProcess:
    return KillableProcess(
        log, sys.executable, "-m", "crabtalk_web", "gateway", "--home", str(home)
    )


def build_relay_process(data: Path, log: Path, port: int = 0) -> KillableProcess:
    command = [sys.executable, "-m", "crabtalk_web.relay", str(data), "--port", str(port)]
    return KillableProcess(log, *command)
