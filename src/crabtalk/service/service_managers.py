"""The service manager of this machine, and functions for components on every platform."""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from .component_paths import ComponentPaths
from .errors import UnitError
from .unit import CommandRunner, ServiceManager, Unit

# Seconds for a command of the platform, which talks to a local process.
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
        command_line = " ".join(command)
        raise UnitError(
            f"{command_line} did not end in {COMMAND_TIMEOUT} s; try it yourself"
        ) from None


def get_service_manager(
    run: CommandRunner = run_command, *, platform: str = sys.platform
) -> ServiceManager:
    """Raises UnitError on a platform whose service manager is not supported."""
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


def stop_component(unit: Unit, paths: ComponentPaths, manager: ServiceManager) -> None:
    """Stop and uninstall the component. Removes a port file that a crash left behind."""
    manager.stop(unit)
    if not paths.port_file.is_listening():
        paths.port_file.path.unlink(missing_ok=True)


def read_last_lines(paths: ComponentPaths, count: int = 50) -> list[str]:
    """The end of a component's log; empty if it has none."""
    try:
        with paths.log_path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, count)]
    except FileNotFoundError:
        return []
