"""The service manager for platforms without one, such as containers and WSL1.

Implements `ServiceManager`. Each service has a supervisor process of its own, which restarts the
service whenever it ends; `run/<name>.pid` identifies both. The process is in `supervisor`.
"""

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crabtalk.service import Unit, UnitError, UnitStatus
from crabtalk.transport import RunFiles, replace_file

from .processes import POLL_INTERVAL, TrackedProcess

# Seconds that a service has to finish its work, and that its supervisor then has to notice.
GRACE = 15.0
NOTICE_SECONDS = 5.0
# Seconds until a supervisor has started its first child.
START_TIMEOUT = 30.0
ALREADY_SUPERVISED = 3  # exit status of a supervisor that found another one


@dataclass(frozen=True, slots=True)
class SupervisorRecord:
    """The content of a pid file. `exit_count` counts how often the service ended by itself."""

    supervisor: TrackedProcess | None = None
    child: TrackedProcess | None = None
    exit_count: int = 0
    last_exit: str = ""

    @classmethod
    def read_file(cls, path: Path) -> "SupervisorRecord | None":
        """None if there is no file. An unreadable file gives an empty record."""
        try:
            value: Any = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError):
            return cls()
        if not isinstance(value, dict):
            return cls()
        exit_count, last_exit = value.get("ends"), value.get("last")
        return cls(
            TrackedProcess.from_json(value.get("supervisor")),
            TrackedProcess.from_json(value.get("child")),
            exit_count if isinstance(exit_count, int) else 0,
            last_exit if isinstance(last_exit, str) else "",
        )

    def write_file(self, path: Path) -> None:
        value = {
            "supervisor": self.supervisor and self.supervisor.to_json(),
            "child": self.child and self.child.to_json(),
            "ends": self.exit_count,
            "last": self.last_exit,
        }
        replace_file(path, f"{json.dumps(value)}\n".encode())

    def has_supervisor(self) -> bool:
        return self.supervisor is not None and self.supervisor.is_alive()

    def has_child(self) -> bool:
        return self.child is not None and self.child.is_alive()


@dataclass(frozen=True, slots=True)
class SupervisorManager:
    """Manages the service `name` of `home` with a supervisor process."""

    home: Path
    name: str

    @property
    def path(self) -> Path:
        return RunFiles.for_home(self.home).directory / f"{self.name}.pid"

    @property
    def lock_path(self) -> Path:
        """Locked by the supervisor as long as it lives. The file identifies it."""
        return self.path.with_suffix(".pid.lock")

    def find_record(self) -> SupervisorRecord | None:
        """None if the service was never started. A supervisor writes a lost pid file again."""
        record = SupervisorRecord.read_file(self.path)
        if record is not None and record.has_supervisor():
            return record
        holder = self._find_supervisor()
        if holder is None:
            return record
        holder.send_signal(signal.SIGUSR1)
        end = time.monotonic() + NOTICE_SECONDS
        while time.monotonic() < end:
            record = SupervisorRecord.read_file(self.path)
            if record is not None and record.has_supervisor():
                return record
            time.sleep(POLL_INTERVAL)
        return SupervisorRecord(holder)

    def _find_supervisor(self) -> TrackedProcess | None:
        try:
            holder = TrackedProcess.from_json(json.loads(self.lock_path.read_bytes()))
        except (OSError, ValueError, RecursionError):
            return None
        return holder if holder is not None and holder.is_alive() else None

    def render(self, unit: Unit) -> bytes:
        value = {
            "label": unit.label,
            "description": unit.description,
            "command": unit.command,
            "directory": str(unit.directory),
            "environment": dict(unit.environment),
            "log": str(unit.log) if unit.log is not None else None,
        }
        # File names may not be valid Unicode; JSON escapes restore them exactly.
        return json.dumps(value).encode()

    def start(self, unit: Unit) -> None:
        """A service whose supervisor was killed keeps running under a new one. A service that
        waits for its next try is started now."""
        for directory in (self.home, self.path.parent, self.home / "logs"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # -P: a file in the current directory must not be imported as a module.
        try:
            result = subprocess.run(
                [sys.executable, "-P", "-m", "crabup.supervisor", str(self.home), self.name],
                input=self.render(unit),
                capture_output=True,
                timeout=START_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnitError(f"the supervisor of {self.name} does not start; try again") from None
        if (
            result.returncode == ALREADY_SUPERVISED
            and (holder := self._find_supervisor()) is not None
        ):
            holder.send_signal(signal.SIGUSR1)
        elif result.returncode not in (0, ALREADY_SUPERVISED):
            error_lines = result.stderr.decode(errors="replace").strip().splitlines()
            raise UnitError(
                f"cannot start {self.name}: {error_lines[-1] if error_lines else 'no reason given'}"
            )

    def stop(self, unit: Unit) -> None:
        record = self.find_record()
        if record is None:
            return
        if record.supervisor is not None:
            record.supervisor.terminate(GRACE + NOTICE_SECONDS)
        # The supervisor may have been killed before it stopped its child.
        if (record := self.find_record()) is not None and record.child is not None:
            record.child.terminate(GRACE)
        self.path.unlink(missing_ok=True)

    def restart(self, unit: Unit) -> None:
        self.stop(unit)
        self.start(unit)

    def status(self, unit: Unit) -> UnitStatus:
        record = self.find_record()
        if record is None:
            return UnitStatus("absent")
        if record.has_child() and record.child is not None:
            return UnitStatus("running", record.child.pid)
        return UnitStatus("failed" if record.has_supervisor() else "stopped")


def parse_unit(data: bytes) -> Unit:
    """Parse the output of `render`."""
    value = json.loads(data)
    return Unit(
        value["label"],
        value["description"],
        tuple(value["command"]),
        Path(value["directory"]),
        value["environment"],
        Path(value["log"]) if value["log"] is not None else None,
    )
