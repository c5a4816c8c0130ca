"""Keeping: which service manager keeps a service of a home alive, and what it is told to start."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from crabtalk.component import Manager, Place, Service, Status, Unit, manager_here

from .programs import Program, find_executable, log_path, service_called
from .supervised import Supervised

LABEL = "ai.crabtalk."
OURS = "supervised"  # by a process of ours, where the platform keeps none
# A service manager that has not answered by then is as good as none.
PATIENCE = 10
NAMES = {"linux": "systemd", "darwin": "launchd", "win32": "schtasks"}
# A service that was too dead to turn its log over does so when it starts.
LARGEST_LOG = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Kept:
    """A service, and what keeps it."""

    name: str
    by: str
    manager: Manager
    unit: Unit

    @property
    def keeper(self) -> str:
        """Who that is, in a sentence."""
        return "crabup" if self.by == OURS else self.by

    def status(self) -> Status:
        return self.manager.status(self.unit)


def label_of(name: str, home: Path) -> str:
    """Two homes have two services of one name; that of the usual home has the plain label."""
    if home == Path.home() / ".crabtalk":
        return LABEL + name
    return f"{LABEL}{name}.{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}"


def platform_manager(platform: str = sys.platform) -> Manager | None:
    """The one of this machine, if it is there and runs."""
    match platform:
        case "linux":
            probe = ["systemctl", "--user", "show-environment"]
        case "darwin":
            probe = ["launchctl", "print", f"gui/{os.getuid()}"]
        case "win32":
            probe = ["schtasks", "/query", "/fo", "csv", "/nh"]
        case _:
            return None
    is_here = shutil.which(probe[0]) is not None and succeeds(probe)
    return manager_here(platform=platform) if is_here else None


def succeeds(command: Sequence[str]) -> bool:
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0


def to_be_kept(name: str, home: Path, *, platform: str = sys.platform) -> Kept:
    """By the platform where it can, else by us. Raises CommandError without a program."""
    Place(home, name)  # or it is no name
    program = service_called(name)
    unit = unit_of(program, find_executable(program, home), home)
    manager = platform_manager(platform)
    if manager is None:
        return Kept(name, OURS, Supervised(home, name), unit)
    return Kept(name, NAMES[platform], manager, unit)


def keepers(
    name: str, home: Path, manager: Manager | None, *, platform: str = sys.platform
) -> Iterator[Kept]:
    """Whatever keeps it now; more than one, if the machine has got a service manager since."""
    program = service_called(name)
    # Only its label matters to who knows it already; the program may be gone.
    unit = unit_of(program, Path("/") / (program.executable or name), home)
    supervised = Kept(name, OURS, Supervised(home, name), unit)
    if supervised.status().state != "absent":
        yield supervised
    if manager is not None:
        kept = Kept(name, NAMES[platform], manager, unit)
        if kept.status().state != "absent":
            yield kept


def kept_names(home: Path, manager: Manager | None) -> set[str]:
    """The services of this home that somebody was told to keep."""
    run = home / "run"
    names = {path.stem for path in run.glob("*.pid")}
    locks = {path.name.removesuffix(".pid.lock") for path in run.glob("*.pid.lock")} - names
    names |= {name for name in locks if Supervised(home, name).record() is not None}
    directory = getattr(manager, "directory", None)
    if isinstance(directory, Path):
        for path in directory.glob(f"{LABEL}*"):
            name = path.name.removeprefix(LABEL).split(".")[0]
            if path.stem == label_of(name, home):
                names.add(name)
    return {name for name in names if re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", name)}


def unit_of(program: Program, executable: Path, home: Path) -> Unit:
    service = Service(program.name, program.description, label=label_of(program.name, home))
    unit = Unit.of(service, executable, home)
    return replace(unit, log=log_path(program.name, home.absolute()))


def ready_log(unit: Unit) -> None:
    """The directory the platform opens the log in, and room in the log."""
    if unit.log is None:
        return
    unit.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if unit.log.exists() and unit.log.stat().st_size > LARGEST_LOG:
        unit.log.replace(unit.log.with_name(f"{unit.log.name}.1"))
