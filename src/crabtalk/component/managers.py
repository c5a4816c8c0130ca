"""The service manager of this machine, and what is said of a component whatever manages it."""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from .errors import UnitError
from .place import Place
from .unit import Manager, Runner, Unit

# Of a command of the platform: it talks to a process beside it.
PATIENCE = 60


def run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        said = " ".join(command)
        raise UnitError(f"{said} did not end in {PATIENCE} s; try it yourself") from None


def manager_here(run: Runner = run_command, *, platform: str = sys.platform) -> Manager:
    """Raises UnitError on a platform whose service manager we do not know."""
    user = Path.home()
    if platform == "linux":
        from .systemd import Systemd

        config = os.environ.get("XDG_CONFIG_HOME") or user / ".config"
        return Systemd(run, Path(config) / "systemd" / "user")
    if platform == "darwin":
        from .launchd import Launchd

        return Launchd(run, user / "Library" / "LaunchAgents", os.getuid())
    if platform == "win32":
        from .schtasks import Schtasks

        data = os.environ.get("LOCALAPPDATA") or user / "AppData" / "Local"
        return Schtasks(run, Path(data) / "crabtalk" / "tasks")
    raise UnitError(f"no service manager is known for {platform}; start the program yourself")


def stop_component(unit: Unit, place: Place, manager: Manager) -> None:
    """Stops and uninstalls it. A port file it was too dead to remove goes too."""
    manager.stop(unit)
    if not place.port.is_listening():
        place.port.path.unlink(missing_ok=True)


def last_lines(place: Place, count: int = 50) -> list[str]:
    """The end of a component's log; nothing when it has none."""
    try:
        with place.log.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, count)]
    except FileNotFoundError:
        return []
