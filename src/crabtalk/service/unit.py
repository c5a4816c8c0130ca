"""Unit: what a service manager has to know to keep a program running. The same on every platform.

`systemd`, `launchd` and `schtasks` each write it in their own syntax. They refuse a text that they
cannot write unchanged: a changed path would start another program.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Literal, Protocol, TypeAlias

from .component_paths import ComponentPaths
from .errors import UnitError
from .service import Service

UnitState: TypeAlias = Literal["running", "stopped", "failed", "absent"]
# Runs a command of the platform and returns its exit code and its output as text.
CommandRunner: TypeAlias = Callable[[Sequence[str]], CompletedProcess[str]]


@dataclass(frozen=True, slots=True)
class Unit:
    """A program to be started at login, and again whenever it ends."""

    label: str
    description: str
    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    # Where its output goes; None leaves that to the platform.
    log: Path | None = None

    def __post_init__(self) -> None:
        if not self.command or not Path(self.command[0]).is_absolute():
            raise UnitError(f"{self.label} has no program: give the absolute path of one")
        if not self.directory.is_absolute():
            raise UnitError(f"{self.directory} is relative: give an absolute path")
        texts = (*self.command, *self.environment.values(), *map(str, self.paths))
        if any("\0" in text for text in texts):
            raise UnitError(f"{self.label} has a NUL in a path or an argument: leave it out")

    @classmethod
    def for_service(
        cls,
        service: Service,
        program: Path,
        home: Path,
        *,
        arguments: Sequence[str] = ("run",),
        path: str | None = None,
    ) -> "Unit":
        """The unit of a component: `program run` in its home, with the PATH of this process."""
        # Links are not resolved: the unit must follow a link that is changed later.
        program, home = (Path(os.path.abspath(given)) for given in (program, home))  # noqa: PTH100
        path = os.environ.get("PATH", os.defpath) if path is None else path
        return cls(
            service.label,
            service.description,
            (str(program), *arguments),
            home,
            {"PATH": path, "CRABTALK_HOME": str(home)},
            ComponentPaths(home, service.name).log_path,
        )

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.directory,) if self.log is None else (self.directory, self.log)


@dataclass(frozen=True, slots=True)
class UnitStatus:
    """The state of a unit, as its service manager reports it."""

    state: UnitState
    pid: int | None = None


class ServiceManager(Protocol):
    """A platform's service manager. If it refuses a command, UnitError has its message."""

    def render(self, unit: Unit) -> bytes:
        """The unit in the platform's format. Raises UnitError if the format cannot express it."""

    def start(self, unit: Unit) -> None:
        """Install the unit and start it, now and at every login. A running one is left alone."""

    def stop(self, unit: Unit) -> None:
        """Stop and uninstall it. A unit that is not installed is no error."""

    def restart(self, unit: Unit) -> None:
        """Install it again and restart it."""

    def status(self, unit: Unit) -> UnitStatus: ...


def run_checked(command: Sequence[str], run: CommandRunner) -> str:
    """The command's output. Raises UnitError if it fails or is not installed."""
    try:
        result = run(command)
    except FileNotFoundError:
        raise UnitError(
            f"{command[0]} is not installed; start the program yourself, in the foreground"
        ) from None
    if result.returncode != 0:
        lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
        raise UnitError(f"{' '.join(command)} failed: {lines[-1] if lines else result.returncode}")
    return result.stdout


def find_unwritable(text: str, controls: str) -> str | None:
    """The first character that UTF-8 cannot encode, or that is a control not in `controls`."""
    for character in text:
        code = ord(character)
        is_control = code < 32 or code == 127
        if 0xD800 <= code <= 0xDFFF or (is_control and character not in controls):
            return character
    return None
