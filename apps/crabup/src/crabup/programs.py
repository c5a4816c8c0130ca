"""Programs: what crabtalk consists of, by the short names people use. Installs nothing."""

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import CrabupError

# As PEP 508 spells a distribution: nothing that an installer would take for an option or a place.
DISTRIBUTION_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
DISTRIBUTION_PREFIX = "crabtalk-"


@dataclass(frozen=True, slots=True)
class CrabtalkProgram:
    """A program, the distribution it comes in, and whether it runs by itself."""

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
    """A short name's, or any other as it is. Raises CommandError for what is no distribution."""
    if name in PROGRAMS_BY_NAME:
        return PROGRAMS_BY_NAME[name].distribution
    if not DISTRIBUTION_PATTERN.fullmatch(name):
        raise CrabupError(
            f"{name!r} cannot be the name of a distribution; say where it is with --from"
        )
    return name


def is_ours(distribution: str) -> bool:
    """Whether `crabup list` and `crabup update` are about it."""
    name = distribution.lower()
    return name in ("crabtalk", "crabup") or name.startswith(DISTRIBUTION_PREFIX)


def find_service_program(name: str) -> CrabtalkProgram:
    """The program behind `crabup NAME start`: one of the table, or anybody's."""
    program = PROGRAMS_BY_NAME.get(name)
    if program is None:
        return CrabtalkProgram(name, name, "", f"The crabtalk component {name}")
    if not program.is_service:
        raise CrabupError(
            f"{name} is a program for people, not a service; run `{program.executable}`"
        )
    return program


def make_log_path(name: str, home: Path) -> Path:
    """That of a service: the daemon's is called after its program."""
    return home / "logs" / f"{'crabtalkd' if name == 'daemon' else name}.log"


def find_executable(program: CrabtalkProgram, home: Path) -> Path:
    """On PATH, where installers put programs, or beside crabup. Absolute."""
    names = (
        [program.executable]
        if program.executable
        else [DISTRIBUTION_PREFIX + program.name, program.name]
    )
    places = [
        os.environ.get("PATH", os.defpath),
        str(home / "bin"),
        str(Path.home() / ".local" / "bin"),
        str(Path(sys.executable).parent),
    ]
    for name in names:
        if found := shutil.which(name, path=os.pathsep.join(places)):
            # Not resolved: a program that is a link is to stay one.
            return Path(os.path.abspath(found))  # noqa: PTH100
    raise CrabupError(
        f"there is no program {' or '.join(names)} here; `crabup pull {program.name}` installs it"
    )
