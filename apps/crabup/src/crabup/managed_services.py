"""Which service manager runs a service of a home, and the unit it is given."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from crabtalk.service import (
    ComponentPaths,
    Service,
    ServiceManager,
    Unit,
    UnitStatus,
    get_service_manager,
)

from .programs import CrabtalkProgram, find_executable, find_service_program, make_log_path
from .supervisor_manager import SupervisorManager

LABEL_PREFIX = "ai.crabtalk."
SUPERVISED = "supervised"  # by a process of crabup, if the platform has no service manager
# Seconds. A service manager that takes longer counts as missing.
PROBE_TIMEOUT = 10
MANAGER_NAMES = {"linux": "systemd", "darwin": "launchd", "win32": "schtasks"}
# A log that is larger when its service starts is rotated: the service has not done so itself.
MAX_LOG_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ManagedService:
    """A service and its service manager."""

    name: str
    managed_by: str
    manager: ServiceManager
    unit: Unit

    @property
    def manager_name(self) -> str:
        """The manager's name in messages."""
        return "crabup" if self.managed_by == SUPERVISED else self.managed_by

    def status(self) -> UnitStatus:
        return self.manager.status(self.unit)


def make_label(name: str, home: Path) -> str:
    """Labels differ between homes, because two homes can have services of one name. The default
    home has the plain label."""
    if home == Path.home() / ".crabtalk":
        return LABEL_PREFIX + name
    return f"{LABEL_PREFIX}{name}.{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}"


def find_platform_manager(platform: str = sys.platform) -> ServiceManager | None:
    """The service manager of this machine, if it is installed and runs."""
    match platform:
        case "linux":
            probe = ["systemctl", "--user", "show-environment"]
        case "darwin":
            probe = ["launchctl", "print", f"gui/{os.getuid()}"]
        case "win32":
            probe = ["schtasks", "/query", "/fo", "csv", "/nh"]
        case _:
            return None
    is_available = shutil.which(probe[0]) is not None and command_succeeds(probe)
    return get_service_manager(platform=platform) if is_available else None


def command_succeeds(command: Sequence[str]) -> bool:
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0


def plan_service(name: str, home: Path, *, platform: str = sys.platform) -> ManagedService:
    """Use the platform's manager, else our supervisor. Raises CrabupError without a program."""
    ComponentPaths(home, name)  # checks the name
    program = find_service_program(name)
    unit = make_unit(program, find_executable(program, home), home)
    manager = find_platform_manager(platform)
    if manager is None:
        return ManagedService(name, SUPERVISED, SupervisorManager(home, name), unit)
    return ManagedService(name, MANAGER_NAMES[platform], manager, unit)


def iterate_managers(
    name: str, home: Path, manager: ServiceManager | None, *, platform: str = sys.platform
) -> Iterator[ManagedService]:
    """The managers that have the service now. There are two if the machine got one meanwhile."""
    program = find_service_program(name)
    # To find a unit only its label matters; the program may be gone.
    unit = make_unit(program, Path("/") / (program.executable or name), home)
    supervised = ManagedService(name, SUPERVISED, SupervisorManager(home, name), unit)
    if supervised.status().state != "absent":
        yield supervised
    if manager is not None:
        managed = ManagedService(name, MANAGER_NAMES[platform], manager, unit)
        if managed.status().state != "absent":
            yield managed


def list_managed_names(home: Path, manager: ServiceManager | None) -> set[str]:
    """The services of this home that a manager was told to run."""
    run = home / "run"
    names = {path.stem for path in run.glob("*.pid")}
    locks = {path.name.removesuffix(".pid.lock") for path in run.glob("*.pid.lock")} - names
    names |= {name for name in locks if SupervisorManager(home, name).find_record() is not None}
    directory = getattr(manager, "directory", None)
    if isinstance(directory, Path):
        for path in directory.glob(f"{LABEL_PREFIX}*"):
            name = path.name.removeprefix(LABEL_PREFIX).split(".")[0]
            if path.stem == make_label(name, home):
                names.add(name)
    return {name for name in names if re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", name)}


def make_unit(program: CrabtalkProgram, executable: Path, home: Path) -> Unit:
    service = Service(program.name, program.description, label=make_label(program.name, home))
    unit = Unit.for_service(service, executable, home)
    return replace(unit, log=make_log_path(program.name, home.absolute()))


def prepare_log(unit: Unit) -> None:
    """Make the directory of the log, and rotate the log if it is large."""
    if unit.log is None:
        return
    unit.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if unit.log.exists() and unit.log.stat().st_size > MAX_LOG_BYTES:
        unit.log.replace(unit.log.with_name(f"{unit.log.name}.1"))
