"""A gateway that a service manager runs: `crabup NAME start`, `ps`, `logs` and `stop`.

with manage_gateway("telegram", path, home, has_systemd=True) as gateway:
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
from apps.crabup.tests.machine import CrabupMachine, CrabupOutcome
from crabup.processes import TrackedProcess

SYSTEMCTL = Path(machine.__file__).with_name("tiny_systemctl.py")


class ManagedGateway:
    def __init__(self, name: str, machine: CrabupMachine, manager: str) -> None:
        self._name = name
        self._machine = machine
        self._manager = manager
        self._pid = 0

    async def start(self) -> None:
        notice = (await self._run_crabup(self._name, "start")).notice
        row = (await self.ps())[self._name]
        self._pid = row["pid"]
        assert notice == f"{self._name} runs (pid {self._pid}), kept by {self._manager}"
        assert row["status"] == "running"

    async def stop(self) -> None:
        assert (await self._run_crabup(self._name, "stop")).notice == f"{self._name} is stopped"
        assert TrackedProcess.find_by_pid(self._pid) is None

    async def read_logs(self) -> str:
        return (await self._run_crabup(self._name, "logs")).output

    async def ps(self) -> dict[str, dict[str, Any]]:
        return await asyncio.to_thread(self._machine.list_services)

    async def _run_crabup(self, *words: str) -> CrabupOutcome:
        return await asyncio.to_thread(self._machine.run_crabup, *words)


@contextmanager
def manage_gateway(
    name: str, path: Path, home: Path, *, has_systemd: bool
) -> Iterator[ManagedGateway]:
    """A machine with the installed program, with or without a systemd of the user."""
    with CrabupMachine(path, home) as machine:
        if not has_systemd:
            yield ManagedGateway(name, machine, "crabup until the next reboot")
            return
        state = path / "state"
        state.mkdir()
        command_line = " ".join(
            shlex.quote(str(word)) for word in (sys.executable, SYSTEMCTL, state)
        )
        machine.add_stub("systemctl", f'exec {command_line} "$@"')
        try:
            yield ManagedGateway(name, machine, "systemd")
        finally:
            for file in state.iterdir():
                if (process := TrackedProcess.find_by_pid(int(file.read_text()))) is not None:
                    process.terminate(1)
