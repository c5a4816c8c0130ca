"""launchd: agents of the logged-in user, as property lists."""

import plistlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crabtalk.transport import replace_file

from .errors import UnitError
from .unit import CommandRunner, Unit, UnitStatus, find_unwritable, run_checked


@dataclass(frozen=True, slots=True)
class Launchd:
    """`launchctl` in the domain of the user `uid`, and the directory of its agents."""

    run: CommandRunner
    directory: Path
    uid: int

    def path(self, unit: Unit) -> Path:
        return self.directory / f"{unit.label}.plist"

    def render(self, unit: Unit) -> bytes:
        entry: dict[str, Any] = {
            "Label": unit.label,
            "ProgramArguments": list(unit.command),
            "WorkingDirectory": str(unit.directory),
            "EnvironmentVariables": dict(unit.environment),
            "RunAtLoad": True,
            "KeepAlive": True,
        }
        if unit.log is not None:
            entry |= {"StandardOutPath": str(unit.log), "StandardErrorPath": str(unit.log)}
        for text in (*unit.command, *unit.environment.values(), *map(str, unit.paths)):
            if (character := find_unwritable(text, controls="\t\n")) is not None:
                raise UnitError(f"launchd cannot read {character!r}, as in {text!r}; leave it out")
        return plistlib.dumps(entry)

    def start(self, unit: Unit) -> None:
        if self.status(unit).state == "running":
            return
        self._install(unit)

    def stop(self, unit: Unit) -> None:
        self._unload(unit)
        self.path(unit).unlink(missing_ok=True)

    def restart(self, unit: Unit) -> None:
        self.render(unit)  # raises before the old unit is removed
        self._unload(unit)
        self._install(unit)

    def status(self, unit: Unit) -> UnitStatus:
        result = self.run(["launchctl", "print", self._make_target(unit)])
        if result.returncode != 0:
            return UnitStatus("absent")
        if match := re.search(r"^\s*pid = (\d+)$", result.stdout, re.MULTILINE):
            return UnitStatus("running", int(match[1]))
        code = re.search(r"^\s*last exit code = (\d+)", result.stdout, re.MULTILINE)
        return UnitStatus("failed" if code and int(code[1]) else "stopped")

    def _install(self, unit: Unit) -> None:
        text = self.render(unit)
        self._unload(unit)
        self.directory.mkdir(parents=True, exist_ok=True)
        replace_file(self.path(unit), text, 0o644)
        run_checked(["launchctl", "bootstrap", f"gui/{self.uid}", str(self.path(unit))], self.run)

    def _unload(self, unit: Unit) -> None:
        if self.status(unit).state != "absent":
            run_checked(["launchctl", "bootout", self._make_target(unit)], self.run)

    def _make_target(self, unit: Unit) -> str:
        return f"gui/{self.uid}/{unit.label}"
