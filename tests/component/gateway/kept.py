"""A gateway that is kept running: `crabup NAME start`, `ps`, `logs` and `stop`, for real.

with kept("telegram", path, home, has_systemd=True) as gateway:
    await gateway.start()
"""

import asyncio
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apps.crabup.tests import machine
from apps.crabup.tests.machine import Machine, Outcome
from crabup.processes import Process

SYSTEMCTL = Path(machine.__file__).with_name("tiny_systemctl.py")


class Kept:
    def __init__(self, name: str, machine: Machine, keeper: str) -> None:
        self._name = name
        self._machine = machine
        self._keeper = keeper
        self._pid = 0

    async def start(self) -> None:
        said = (await self._crabup(self._name, "start")).said
        row = (await self.ps())[self._name]
        self._pid = row["pid"]
        assert said == f"{self._name} runs (pid {self._pid}), kept by {self._keeper}"
        assert row["status"] == "running"

    async def stop(self) -> None:
        assert (await self._crabup(self._name, "stop")).said == f"{self._name} is stopped"
        assert Process.at(self._pid) is None

    async def logs(self) -> str:
        return (await self._crabup(self._name, "logs")).answer

    async def ps(self) -> dict[str, dict[str, Any]]:
        return await asyncio.to_thread(self._machine.ps)

    async def _crabup(self, *words: str) -> Outcome:
        return await asyncio.to_thread(self._machine.crabup, *words)


@contextmanager
def kept(name: str, path: Path, home: Path, *, has_systemd: bool) -> Iterator[Kept]:
    """The machine has the program as it is installed, and a systemd of the user or none."""
    with Machine(path, home) as found:
        if not has_systemd:
            yield Kept(name, found, "crabup until the next reboot")
            return
        state = path / "state"
        state.mkdir()
        words = " ".join(shlex.quote(str(word)) for word in (sys.executable, SYSTEMCTL, state))
        found.stub("systemctl", f'exec {words} "$@"')
        try:
            yield Kept(name, found, "systemd")
        finally:
            for file in state.iterdir():
                if (process := Process.at(int(file.read_text()))) is not None:
                    process.end(1)
