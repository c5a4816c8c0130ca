"""Programs: the parts of crabtalk, by the short names people use. Installs nothing."""

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import CrabupError

# The names that PEP 508 allows: an installer takes none of them for an option or a path.
DISTRIBUTION_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
DISTRIBUTION_PREFIX = "crabtalk-"


@dataclass(frozen=True, slots=True)
class CrabtalkProgram:
    """A program, its distribution, and whether it runs as a service."""

    name: str
    distribution: str
    executable: str
    description: str
    is_service: bool = True


PROGRAMS = (
    CrabtalkProgram("daemon", "crabtalk", "crabtalkd", "The agent daemon"),
    CrabtalkProgram(
        "tui", "crabtalk", "crabtalk", "The command line, for people", is_service=False
    ),
    CrabtalkProgram("search", "crabtalk-search", "crabtalk-search", "Web search for agents"),
    CrabtalkProgram("cron", "crabtalk-cron", "crabtalk-cron", "Sets agents off by the clock"),
    CrabtalkProgram("telegram", "crabtalk-telegram", "crabtalk-telegram", "The Telegram gateway"),
    CrabtalkProgram("wechat", "crabtalk-wechat", "crabtalk-wechat", "The WeChat gateway"),
    CrabtalkProgram("web", "crabtalk-web", "crabtalk-web", "The page in the browser"),
)
PROGRAMS_BY_NAME = {program.name: program for program in PROGRAMS}


def find_distribution(name: str) -> str:
    """The distribution of a short name, or the name itself. Raises CrabupError if it is neither."""
    if name in PROGRAMS_BY_NAME:
        return PROGRAMS_BY_NAME[name].distribution
    if not DISTRIBUTION_PATTERN.fullmatch(name):
        raise CrabupError(
            f"{name!r} cannot be the name of a distribution; say where it is with --from"
        )
    return name


def is_ours(distribution: str) -> bool:
    """Whether `crabup list` and `crabup update` include it."""
    name = distribution.lower()
    return name in ("crabtalk", "crabup") or name.startswith(DISTRIBUTION_PREFIX)


def find_service_program(name: str) -> CrabtalkProgram:
    """The program of `crabup NAME start`: a known one, or a component of the user's."""
    program = PROGRAMS_BY_NAME.get(name)
    if program is None:
        return CrabtalkProgram(name, name, "", f"The crabtalk component {name}")
    if not program.is_service:
        raise CrabupError(
            f"{name} is a program for people, not a service; run `{program.executable}`"
        )
    return program


def make_log_path(name: str, home: Path) -> Path:
    """The log of a service. The daemon's is named after its program."""
    return home / "logs" / f"{'crabtalkd' if name == 'daemon' else name}.log"


def find_executable(program: CrabtalkProgram, home: Path) -> Path:
    """Search PATH, the directories of installers, and crabup's own. The path is absolute."""
    names = (
        [program.executable]
        if program.executable
        else [DISTRIBUTION_PREFIX + program.name, program.name]
    )
    directories = [
        os.environ.get("PATH", os.defpath),
        str(home / "bin"),
        str(Path.home() / ".local" / "bin"),
        str(Path(sys.executable).parent),
    ]
    for name in names:
        if path := shutil.which(name, path=os.pathsep.join(directories)):
            # Not resolved: a link must stay a link.
            return Path(os.path.abspath(path))  # noqa: PTH100
    raise CrabupError(
        f"there is no program {' or '.join(names)} here; `crabup pull {program.name}` installs it"
    )
