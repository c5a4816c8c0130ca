"""Installers: ways to install a Python program in an environment of its own.

The first one that is available is used: `uv tool`, pipx, or pip in a virtual environment of the
home. Each keeps its own list of programs.
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
    """A distribution from the index, or from `source`, which is a path or a URL.

    `extra_sources` are sources of dependencies that no index has.
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

    def install(self, target: WantedDistribution) -> None:
        """Install it, replacing an earlier version."""

    def uninstall(self, distribution: str) -> None: ...

    def upgrade(self, distributions: Sequence[str]) -> None: ...

    def list_installed(self) -> dict[str, str]:
        """Names and versions of all programs it has installed."""


class UvInstaller:
    name = "uv"

    def is_available(self) -> bool:
        return shutil.which("uv") is not None

    def install(self, target: WantedDistribution) -> None:
        command = ["uv", "tool", "install", *target.extra_options("--with")]
        if target.source:
            # A directory can change without a new version.
            command += ["--reinstall-package", target.distribution, "--from", target.source]
            run_shown([*command, target.distribution])
        else:
            run_shown([*command, target.requirement])

    def uninstall(self, distribution: str) -> None:
        run_shown(["uv", "tool", "uninstall", distribution])

    def upgrade(self, distributions: Sequence[str]) -> None:
        run_shown(["uv", "tool", "upgrade", *distributions])

    def list_installed(self) -> dict[str, str]:
        lines = read_output(["uv", "tool", "list"]).splitlines()
        matches = (re.fullmatch(r"([A-Za-z0-9][\w.-]*) v(\S+).*", line) for line in lines)
        return {match[1]: match[2] for match in matches if match}


class PipxInstaller:
    name = "pipx"

    def is_available(self) -> bool:
        return shutil.which("pipx") is not None

    def install(self, target: WantedDistribution) -> None:
        options = target.extra_options("--preinstall")
        run_shown(["pipx", "install", "--force", *options, target.requirement])

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
    """pip in `programs/<distribution>` of the home, with links to its programs in `bin`."""

    home: Path

    @property
    def name(self) -> str:
        return "pip"

    def is_available(self) -> bool:
        return find_spec("venv") is not None and find_spec("ensurepip") is not None

    def install(self, target: WantedDistribution) -> None:
        environment = self._environment_path(target.distribution)
        is_new = not environment.exists()
        try:
            if is_new:
                environment.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                run_shown([sys.executable, "-P", "-m", "venv", str(environment)])
            requirements = (*target.extra_sources, target.requirement)
            self._run_pip(target.distribution, "install", "--upgrade", *requirements)
            self._link_scripts(target.distribution)
        except BaseException:
            if is_new:
                shutil.rmtree(environment, ignore_errors=True)
            raise

    def uninstall(self, distribution: str) -> None:
        environment = self._environment_path(distribution)
        for link in self._list_links():
            if environment in link.readlink().parents:
                link.unlink()
        shutil.rmtree(environment)
        for directory in (environment.parent, self.home / "bin"):
            if directory.is_dir() and not any(directory.iterdir()):
                directory.rmdir()

    def upgrade(self, distributions: Sequence[str]) -> None:
        for distribution in distributions:
            self._run_pip(distribution, "install", "--upgrade", self._find_source(distribution))
            self._link_scripts(distribution)

    def list_installed(self) -> dict[str, str]:
        config_files = self.home.joinpath("programs").glob("*/pyvenv.cfg")
        found_distributions = (
            (config_file.parent.name, self._find_distribution(config_file.parent.name))
            for config_file in config_files
        )
        return {
            name: installed.version
            for name, installed in found_distributions
            if installed is not None
        }

    def _environment_path(self, distribution: str) -> Path:
        return self.home / "programs" / distribution

    def _run_pip(self, distribution: str, *arguments: str) -> None:
        python = self._environment_path(distribution) / "bin" / "python"
        run_shown([str(python), "-P", "-m", "pip", "--disable-pip-version-check", *arguments])

    def _find_distribution(self, distribution: str) -> "Distribution | None":
        from importlib.metadata import distributions

        sites = self._environment_path(distribution).glob("lib/python*/site-packages")
        return next(iter(distributions(name=distribution, path=list(map(str, sites)))), None)

    def _find_source(self, distribution: str) -> str:
        """The path or URL it was installed from, as recorded by pip, else its name."""
        installed = self._find_distribution(distribution)
        origin = installed.read_text("direct_url.json") if installed is not None else None
        return str(json.loads(origin)["url"]) if origin else distribution

    def _list_links(self) -> list[Path]:
        return [path for path in self.home.joinpath("bin").glob("*") if path.is_symlink()]

    def _link_scripts(self, distribution: str) -> None:
        installed = self._find_distribution(distribution)
        if installed is None:
            raise CrabupError(f"what was installed is not {distribution}; name what it is")
        directory = self.home / "bin"
        directory.mkdir(mode=0o700, exist_ok=True)
        for script in installed.entry_points.select(group="console_scripts"):
            link = directory / script.name
            link.unlink(missing_ok=True)
            link.symlink_to(self._environment_path(distribution) / "bin" / script.name)


def list_installers(home: Path) -> list[Installer]:
    """The available installers, best first."""
    installers: list[Installer] = [UvInstaller(), PipxInstaller(), PipInstaller(home)]
    return [installer for installer in installers if installer.is_available()]


def choose_installer(home: Path) -> Installer:
    installers = list_installers(home)
    if not installers:
        raise CrabupError(
            "there is no way to install programs here: uv and pipx are not on PATH, and this "
            "Python has no venv; install uv"
        )
    return installers[0]


def list_installed(home: Path) -> dict[str, tuple[Installer, str]]:
    """All installed programs by name, with their installer and version."""
    programs: dict[str, tuple[Installer, str]] = {}
    for installer in list_installers(home):
        for name, version in installer.list_installed().items():
            programs.setdefault(name, (installer, version))
    return programs


def run_shown(command: Sequence[str]) -> None:
    """Run a command and show its output on stderr, because it is not the answer of crabup."""
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
        error_lines = result.stderr.strip().splitlines()
        raise CrabupError(
            f"{' '.join(command)} failed: {error_lines[-1] if error_lines else 'it says nothing'}; "
            f"mend {command[0]} first"
        )
    return result.stdout


def clean_environment() -> dict[str, str]:
    """The environment without variables that point installers at crabup's own environment."""
    excluded = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "__PYVENV_LAUNCHER__")
    return {name: value for name, value in os.environ.items() if name not in excluded}
