"""The service manager of this machine, and what is said of a component whatever manages it."""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from .component_paths import ComponentPaths
from .errors import UnitError
from .unit import CommandRunner, ServiceManager, Unit

# Of a command of the platform: it talks to a process beside it.
COMMAND_TIMEOUT = 60


def run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        said = " ".join(command)
        raise UnitError(f"{said} did not end in {COMMAND_TIMEOUT} s; try it yourself") from None


def get_service_manager(
    run: CommandRunner = run_command, *, platform: str = sys.platform
) -> ServiceManager:
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
        from .schtasks import TaskScheduler

        data = os.environ.get("LOCALAPPDATA") or user / "AppData" / "Local"
        return TaskScheduler(run, Path(data) / "crabtalk" / "tasks")
    raise UnitError(f"no service manager is known for {platform}; start the program yourself")


def stop_component(unit: Unit, place: ComponentPaths, manager: ServiceManager) -> None:
    """Stops and uninstalls it. A port file it was too dead to remove goes too."""
    manager.stop(unit)
    if not place.port_file.is_listening():
        place.port_file.path.unlink(missing_ok=True)


def read_last_lines(place: ComponentPaths, count: int = 50) -> list[str]:
    """The end of a component's log; nothing when it has none."""
    try:
        with place.log_path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, count)]
    except FileNotFoundError:
        return []
