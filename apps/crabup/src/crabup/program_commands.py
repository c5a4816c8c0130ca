"""crabup pull, rm, update, list: crabtalk's programs, installed with Python installers."""

import shutil
from pathlib import Path
from typing import Any

import click

from crabtalk.service.command_line import (
    format_table,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .errors import CrabupError
from .installers import WantedDistribution, choose_installer, list_installed
from .options import home_option, make_home, resolve_home
from .programs import PROGRAMS, PROGRAMS_BY_NAME, find_distribution, is_ours


@click.command()
@click.argument("name")
@click.option("--version", metavar="X", default="", help="This version, not the newest.")
@click.option(
    "--from", "source", metavar="PATH|URL", default="", help="From here: what no index has."
)
@click.option(
    "--with",
    "extra_sources",
    metavar="PATH|URL",
    multiple=True,
    help="Something it needs, and no index has either.",
)
@home_option
def pull(
    name: str, version: str, source: str, extra_sources: tuple[str, ...], given_home: Path | None
) -> None:
    """Install a program: daemon, tui, search, cron, telegram, wechat, web.

    Any other name is that of a distribution. By `uv tool`, else by pipx, else by
    pip in a virtual environment of its own.

    \b
    Examples:
      crabup pull daemon
      crabup pull search --version 0.1.0
      crabup pull search --from ./apps/search --with .
    """
    if version and source:
        raise click.UsageError("--from has the version it has; leave --version out")
    home = resolve_home(given_home)
    wanted = WantedDistribution(
        find_distribution(name),
        check_version(version),
        check_source(source),
        tuple(map(check_source, extra_sources)),
    )
    installer = choose_installer(home)
    make_home(home)
    installer.install(wanted)
    print_to_stderr(f"{wanted.distribution} is installed, by {installer.name}")
    if installer.name == "pip" and shutil.which(
        PROGRAMS_BY_NAME[name].executable if name in PROGRAMS_BY_NAME else name
    ):
        return
    if installer.name == "pip":
        print_to_stderr(f"programs are in {home / 'bin'}; add it to your PATH")


@click.command()
@click.argument("name")
@home_option
def rm(name: str, given_home: Path | None) -> None:
    """Remove a program. What it has kept in the home stays.

    \b
    Example:
      crabup rm search
    """
    from .managed_services import find_platform_manager, iterate_managers

    home = resolve_home(given_home)
    distribution = find_distribution(name)
    installed = list_installed(home).get(distribution)
    if installed is None:
        if name in PROGRAMS_BY_NAME and (path := shutil.which(PROGRAMS_BY_NAME[name].executable)):
            raise CrabupError(
                f"{distribution} was installed by other means ({path}); remove it by the same, "
                f"such as `pip uninstall {distribution}` in its environment"
            )
        raise CrabupError(f"{distribution} is not installed; `crabup list` says what is")
    if name in PROGRAMS_BY_NAME and PROGRAMS_BY_NAME[name].is_service:
        for managed in iterate_managers(name, home, find_platform_manager()):
            raise CrabupError(
                f"{name} is kept by {managed.manager_name}; `crabup {name} stop` first"
            )
    installed[0].uninstall(distribution)
    print_to_stderr(f"{distribution} is removed")


@click.command()
@home_option
def update(given_home: Path | None) -> None:
    """Bring all of crabtalk's programs to their newest versions.

    Services that run go on as they are until they are restarted.

    \b
    Example:
      crabup update
    """
    home = resolve_home(given_home)
    before = {name: entry for name, entry in list_installed(home).items() if is_ours(name)}
    if not before:
        raise CrabupError("nothing is installed; `crabup pull daemon` begins")
    for installer in {entry[0].name: entry[0] for entry in before.values()}.values():
        installer.upgrade(
            [name for name, entry in before.items() if entry[0].name == installer.name]
        )
    after = list_installed(home)
    changed = [name for name in before if name in after and after[name][1] != before[name][1]]
    for name in changed:
        print_to_stderr(f"{name} is now {after[name][1]}")
    print_to_stderr(
        "`crabup NAME restart` lets a service use it"
        if changed
        else "everything is as new as it gets"
    )


@click.command("list")
@home_option
@json_option
def list_(given_home: Path | None, in_json: bool) -> None:
    """List crabtalk's programs: those there are, and which are installed.

    \b
    Examples:
      crabup list
      crabup list --json
    """
    rows = list_programs(resolve_home(given_home))
    if in_json:
        print_json({"programs": rows})
        return
    head = ("NAME", "PROGRAM", "VERSION", "BY", "WHAT IT IS")
    keys = ("name", "program", "version", "installed_by", "description")
    print_output(
        format_table(
            [head, *(tuple(to_one_line(str(row[key] or "-")) for key in keys) for row in rows)]
        )
    )


def list_programs(home: Path) -> list[dict[str, Any]]:
    """The known programs, and all other installed ones of ours."""
    installed = list_installed(home)
    rows: list[dict[str, Any]] = []
    for program in PROGRAMS:
        installer, version = installed.pop(program.distribution, (None, None))
        installed_by = installer.name if installer is not None else None
        if installed_by is None and shutil.which(program.executable):
            installed_by = "other means"
        rows.append(
            {
                "name": program.name,
                "program": program.executable,
                "version": version,
                "installed_by": installed_by,
                "description": program.description,
            }
        )
    for name, (installer, version) in sorted(installed.items()):
        if is_ours(name):
            rows.append(
                {
                    "name": name,
                    "program": None,
                    "version": version,
                    "installed_by": installer.name,
                    "description": None,
                }
            )
    return rows


def check_version(version: str) -> str:
    """Raises CrabupError for text that an installer could read as something else."""
    if version and not version.replace(".", "").replace("+", "").isalnum():
        raise CrabupError(f"{version!r} is no version; write one such as 0.1.0")
    return version


def check_source(source: str) -> str:
    """Make a path absolute; leave a URL as it is."""
    if not source:
        return ""
    if source.startswith("-"):
        raise CrabupError(f"{source!r} is no place; name a directory, a wheel or a URL")
    if "://" in source:
        return source
    path = Path(source).expanduser()
    if not path.exists():
        raise CrabupError(f"there is no {source}; name a directory, a wheel or a URL")
    return str(path.absolute())
