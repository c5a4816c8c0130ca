"""Installers: the Python ways to install a program apart from all others. Each has its own books.

The first that is there is used: `uv tool`, pipx, else pip in a virtual environment of the home.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .errors import CrabupError

if TYPE_CHECKING:
    from importlib.metadata import Distribution


@dataclass(frozen=True, slots=True)
class WantedDistribution:
    """A distribution, from wherever the index has it or from `source`, a path or a URL.

    `beside` are such sources of what it needs and no index has either.
    """

    distribution: str
    version: str = ""
    source: str = ""
    extra_sources: tuple[str, ...] = ()

    def extra_options(self, option: str) -> list[str]:
        return [word for source in self.extra_sources for word in (option, source)]

    @property
    def requirement(self) -> str:
        if self.source:
            return self.source
        return f"{self.distribution}=={self.version}" if self.version else self.distribution


class Installer(Protocol):
    @property
    def name(self) -> str: ...

    def is_available(self) -> bool: ...

    def install(self, wanted: WantedDistribution) -> None:
        """Installs it, or puts it in the place of what was installed before."""

    def uninstall(self, distribution: str) -> None: ...

    def upgrade(self, distributions: Sequence[str]) -> None: ...

    def list_installed(self) -> dict[str, str]:
        """Names and versions of everything it has installed."""


class UvInstaller:
    name = "uv"

    def is_available(self) -> bool:
        return shutil.which("uv") is not None

    def install(self, wanted: WantedDistribution) -> None:
        words = ["uv", "tool", "install", *wanted.extra_options("--with")]
        if wanted.source:
            # A directory changes without its version changing.
            words += ["--reinstall-package", wanted.distribution, "--from", wanted.source]
            run_shown([*words, wanted.distribution])
        else:
            run_shown([*words, wanted.requirement])

    def uninstall(self, distribution: str) -> None:
        run_shown(["uv", "tool", "uninstall", distribution])

    def upgrade(self, distributions: Sequence[str]) -> None:
        run_shown(["uv", "tool", "upgrade", *distributions])

    def list_installed(self) -> dict[str, str]:
        lines = read_output(["uv", "tool", "list"]).splitlines()
        found = (re.fullmatch(r"([A-Za-z0-9][\w.-]*) v(\S+).*", line) for line in lines)
        return {match[1]: match[2] for match in found if match}


class PipxInstaller:
    name = "pipx"

    def is_available(self) -> bool:
        return shutil.which("pipx") is not None

    def install(self, wanted: WantedDistribution) -> None:
        beside = wanted.extra_options("--preinstall")
        run_shown(["pipx", "install", "--force", *beside, wanted.requirement])

    def uninstall(self, distribution: str) -> None:
        run_shown(["pipx", "uninstall", distribution])

    def upgrade(self, distributions: Sequence[str]) -> None:
        for distribution in distributions:
            run_shown(["pipx", "upgrade", distribution])

    def list_installed(self) -> dict[str, str]:
        lines = [line.split() for line in read_output(["pipx", "list", "--short"]).splitlines()]
        return {words[0]: words[1] for words in lines if len(words) == 2}


@dataclass(frozen=True, slots=True)
class PipInstaller:
    """pip, in `programs/<distribution>` of the home; `bin` there has links to the programs."""

    home: Path

    @property
    def name(self) -> str:
        return "pip"

    def is_available(self) -> bool:
        return find_spec("venv") is not None and find_spec("ensurepip") is not None

    def install(self, wanted: WantedDistribution) -> None:
        place = self._environment_path(wanted.distribution)
        is_new = not place.exists()
        try:
            if is_new:
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                run_shown([sys.executable, "-P", "-m", "venv", str(place)])
            requirements = (*wanted.extra_sources, wanted.requirement)
            self._run_pip(wanted.distribution, "install", "--upgrade", *requirements)
            self._link_scripts(wanted.distribution)
        except BaseException:
            if is_new:
                shutil.rmtree(place, ignore_errors=True)
            raise

    def uninstall(self, distribution: str) -> None:
        place = self._environment_path(distribution)
        for link in self._list_links():
            if place in link.readlink().parents:
                link.unlink()
        shutil.rmtree(place)
        for directory in (place.parent, self.home / "bin"):
            if directory.is_dir() and not any(directory.iterdir()):
                directory.rmdir()

    def upgrade(self, distributions: Sequence[str]) -> None:
        for distribution in distributions:
            self._run_pip(distribution, "install", "--upgrade", self._find_source(distribution))
            self._link_scripts(distribution)

    def list_installed(self) -> dict[str, str]:
        places = self.home.joinpath("programs").glob("*/pyvenv.cfg")
        found = (
            (place.parent.name, self._find_distribution(place.parent.name)) for place in places
        )
        return {name: each.version for name, each in found if each is not None}

    def _environment_path(self, distribution: str) -> Path:
        return self.home / "programs" / distribution

    def _run_pip(self, distribution: str, *words: str) -> None:
        python = self._environment_path(distribution) / "bin" / "python"
        run_shown([str(python), "-P", "-m", "pip", "--disable-pip-version-check", *words])

    def _find_distribution(self, distribution: str) -> "Distribution | None":
        from importlib.metadata import distributions

        sites = self._environment_path(distribution).glob("lib/python*/site-packages")
        return next(iter(distributions(name=distribution, path=list(map(str, sites)))), None)

    def _find_source(self, distribution: str) -> str:
        """Where it came from: a place that pip has noted down, else the index."""
        found = self._find_distribution(distribution)
        noted = found.read_text("direct_url.json") if found is not None else None
        return str(json.loads(noted)["url"]) if noted else distribution

    def _list_links(self) -> list[Path]:
        return [path for path in self.home.joinpath("bin").glob("*") if path.is_symlink()]

    def _link_scripts(self, distribution: str) -> None:
        found = self._find_distribution(distribution)
        if found is None:
            raise CrabupError(f"what was installed is not {distribution}; name what it is")
        directory = self.home / "bin"
        directory.mkdir(mode=0o700, exist_ok=True)
        for script in found.entry_points.select(group="console_scripts"):
            link = directory / script.name
            link.unlink(missing_ok=True)
            link.symlink_to(self._environment_path(distribution) / "bin" / script.name)


def list_installers(home: Path) -> list[Installer]:
    """Those that are here, best first."""
    known: list[Installer] = [UvInstaller(), PipxInstaller(), PipInstaller(home)]
    return [installer for installer in known if installer.is_available()]


def choose_installer(home: Path) -> Installer:
    found = list_installers(home)
    if not found:
        raise CrabupError(
            "there is no way to install programs here: uv and pipx are not on PATH, and this "
            "Python has no venv; install uv"
        )
    return found[0]


def list_installed(home: Path) -> dict[str, tuple[Installer, str]]:
    """Every program that any of them has, with its version."""
    found: dict[str, tuple[Installer, str]] = {}
    for installer in list_installers(home):
        for name, version in installer.list_installed().items():
            found.setdefault(name, (installer, version))
    return found


def run_shown(command: Sequence[str]) -> None:
    """Its words are shown as they come, on stderr: they are no answer."""
    result = subprocess.run(
        command, stdout=sys.stderr.fileno(), env=clean_environment(), check=False
    )
    if result.returncode != 0:
        raise CrabupError(
            f"{Path(command[0]).name} ended with status {result.returncode}; it says why above"
        )


def read_output(command: Sequence[str]) -> str:
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        env=clean_environment(),
        check=False,
    )
    if result.returncode != 0:
        said = result.stderr.strip().splitlines()
        raise CrabupError(
            f"{' '.join(command)} failed: {said[-1] if said else 'it says nothing'}; "
            f"mend {command[0]} first"
        )
    return result.stdout


def clean_environment() -> dict[str, str]:
    """Without what would make an installer think of the environment crabup itself is in."""
    inside = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "__PYVENV_LAUNCHER__")
    return {name: value for name, value in os.environ.items() if name not in inside}
