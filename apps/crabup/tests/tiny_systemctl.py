"""A minimal systemd of the user: parses unit files as systemd does, and runs real processes.

`python tiny_systemctl.py STATE --user VERB ... UNIT`; STATE is a directory with a pid file for each
unit. A unit's process gets only the environment of the unit, and is not restarted.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from crabup.processes import TrackedProcess  # noqa: E402
from tests.service.unit_parsers import parse_systemd_unit  # noqa: E402

GRACE = 15.0


class TinyUnit:
    def __init__(self, name: str, state: Path) -> None:
        self.file = Path(os.environ["HOME"]) / ".config" / "systemd" / "user" / name
        self.pid_file = state / name

    @property
    def process(self) -> TrackedProcess | None:
        return (
            TrackedProcess.find_by_pid(int(self.pid_file.read_text()))
            if self.pid_file.exists()
            else None
        )

    def start(self) -> None:
        if self.process is not None:
            return
        unit = parse_systemd_unit(self.file.read_text())
        output = unit.values["StandardOutput"].removeprefix("append:")
        assert unit.values["StandardError"] == unit.values["StandardOutput"]
        with open(output, "ab") as log:  # noqa: PTH123
            started = subprocess.Popen(
                unit.command,
                cwd=unit.values["WorkingDirectory"],
                env={"HOME": os.environ["HOME"], **unit.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid_file.write_text(str(started.pid))

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate(GRACE)
        self.pid_file.unlink(missing_ok=True)

    def describe_state(self) -> str:
        if not self.file.exists():
            return "LoadState=not-found\nActiveState=inactive\nMainPID=0\n"
        if self.process is not None:
            return f"LoadState=loaded\nActiveState=active\nMainPID={self.process.pid}\n"
        state = "failed" if self.pid_file.exists() else "inactive"
        return f"LoadState=loaded\nActiveState={state}\nMainPID=0\n"


def main(state: str, scope: str, verb: str, *words: str) -> None:
    assert scope == "--user"
    if verb in ("show-environment", "daemon-reload"):
        return
    unit = TinyUnit(words[-1], Path(state))
    if verb == "show":
        sys.stdout.write(unit.describe_state())
    if verb in ("restart", "disable"):
        unit.stop()
    if verb == "restart" or (verb == "enable" and "--now" in words):
        unit.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
