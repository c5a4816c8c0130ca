"""crabup pkg: installs packages of agents, skills, MCP servers and commands from a registry."""

import os
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.service.command_line import (
    format_table,
    has_terminal,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .confirmation import confirm_change
from .errors import CrabupError
from .options import home_option, resolve_home

if TYPE_CHECKING:
    from .install_plan import InstallPlan
    from .manifest import PackageManifest


@click.group()
def pkg() -> None:
    """Packages: agents, skills, MCP servers and commands, from a registry.

    \b
    Examples:
      crabup pkg add notes --registry https://example.org/registry.git
      crabup pkg list
      crabup pkg remove notes
    """


@pkg.command("add")
@click.argument("name")
@click.option("--path", metavar="DIR", help="The package itself, with its manifest.")
@click.option("--registry", metavar="URL|DIR", help="Where manifests are.")
@click.option("--branch", metavar="B", help="Of the package's repository.")
@click.option("--agent", metavar="NAME", default="", help="Of yours, to get its MCP servers.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask whether to add it.")
@click.option("--yes-run-setup", is_flag=True, help="Do not ask about its script either.")
@home_option
def pkg_add(
    name: str,
    path: str | None,
    registry: str | None,
    branch: str | None,
    agent: str,
    yes: bool,
    yes_run_setup: bool,
    given_home: Path | None,
) -> None:
    """Add the package NAME: says what it brings, and asks first.

    \b
    Examples:
      crabup pkg add notes --registry https://example.org/registry.git
      crabup pkg add notes --path ./notes --yes
    """
    if path is not None and registry is not None:
        raise click.UsageError("--path is the package itself; leave --registry out")
    from .install_plan import make_plan
    from .installation import install_plan, make_receipt
    from .manifest import is_agent_name

    home = resolve_home(given_home)
    if agent and not is_agent_name(agent):
        raise CrabupError(f"no agent is called {agent!r}; name one of {home / 'agents'}")
    with open_package(name, home, path, registry, branch) as (manifest, repository):
        plan = make_plan(manifest, repository, agent)
        make_receipt(plan, home)  # reports conflicts before the person is asked
        print_to_stderr(describe_plan(plan))
        if plan.script and not yes_run_setup:
            print_to_stderr(f"Its set-up runs this, as you:\n\n{plan.script.rstrip()}\n")
            if not has_terminal():
                raise CrabupError(
                    "nothing was changed; without a terminal to ask on, read it and say "
                    "--yes-run-setup"
                )
            confirm_change(f"Add {name}, and run that?", hint="say --yes-run-setup")
        elif not yes:
            confirm_change(f"Add {name}?", hint="say --yes")
        install_plan(plan, home, repository, lambda: check_with_daemon(plan, home))
    print_to_stderr(f"{name} is added")


@pkg.command("remove")
@click.argument("name")
@home_option
def pkg_remove(name: str, given_home: Path | None) -> None:
    """Remove exactly what a package has added. What was edited since stays.

    \b
    Example:
      crabup pkg remove notes
    """
    from .installation import remove_package
    from .manifest import check_package_name
    from .receipt import read_receipt

    home = resolve_home(given_home)
    check_package_name(name)
    receipt = read_receipt(home, name)
    if receipt is None:
        raise CrabupError(f"there is no package {name} here; `crabup pkg list` has the names")
    for path in remove_package(receipt, home):
        print_to_stderr(f"{home / path} was edited since, and stays")
    print_to_stderr(f"{name} is removed")
    reload_daemon(home)


@pkg.command("list")
@home_option
@json_option
def pkg_list(given_home: Path | None, in_json: bool) -> None:
    """List the packages that are here, and what each has brought.

    \b
    Examples:
      crabup pkg list
      crabup pkg list --json
    """
    from .receipt import iterate_receipts

    home = resolve_home(given_home)
    rows = [build_row(receipt, home) for receipt in iterate_receipts(home)]
    if in_json:
        print_json({"packages": rows})
    elif rows:
        print_output(
            format_table(
                [
                    tuple(to_one_line(row[key], 60) for key in ("name", "brings", "description"))
                    for row in map(format_row, rows)
                ]
            )
        )
    else:
        print_to_stderr("there are no packages; `crabup pkg add` adds one")


@contextmanager
def open_package(
    name: str, home: Path, path: str | None, registry: str | None, branch: str | None
) -> Iterator[tuple["PackageManifest", Path | None]]:
    """The manifest of a package, and its repository while the context lasts."""
    from .manifest import check_package_name, read_manifest
    from .repositories import REMOTE_PATTERN, open_repository

    check_package_name(name)
    if path is not None:
        with open_repository(path, branch or "", may_be_local=True) as root:
            yield read_manifest(root / f"{name}.toml", name), root
        return
    registry_location = registry or find_registry(home)
    with open_repository(registry_location, may_be_local=True) as root:
        manifest = read_manifest(root / f"{name}.toml", name)
        if not manifest.repository:
            yield manifest, None
            return
        # Only a local registry may name repositories on this machine.
        is_local = not REMOTE_PATTERN.fullmatch(registry_location)
        with open_repository(
            manifest.repository, branch or manifest.branch, may_be_local=is_local
        ) as repository:
            yield manifest, repository


def find_registry(home: Path) -> str:
    path = home / "config" / "crabup.toml"
    location: Any = os.environ.get("CRABUP_REGISTRY")
    if not location:
        try:
            location = tomllib.loads(path.read_text("utf-8")).get("registry")
        except FileNotFoundError:
            location = None
        except ValueError as error:
            raise CrabupError(f"{path} is not valid TOML: {error}; mend it") from None
    if not isinstance(location, str) or not location:
        raise CrabupError(
            f'say where packages are: --registry URL or DIR, or registry = "..." in {path}'
        )
    return location


def describe_plan(plan: "InstallPlan") -> str:
    """What a person should know before they say yes. Programs that will run are named in full."""
    manifest = plan.manifest
    lines = [f"{manifest.name}: {to_one_line(manifest.description, 200) or 'no description'}"]
    lines += [f"  agent {name}" for name in plan.agents]
    lines += [f"  skill {to_one_line(name)}" for name in plan.skills]
    servers = [*manifest.mcps.values(), *(s for agent in manifest.agents for s in agent.mcps or ())]
    lines += dict.fromkeys(
        f"  MCP server {to_one_line(describe_server(server))}" for server in servers
    )
    lines += [
        f"  program {distribution}" for distribution in sorted(set(manifest.commands.values()))
    ]
    if plan.agent:
        lines.append(f"  its MCP servers are for your agent {to_one_line(plan.agent)}")
    if manifest.repository:
        checked = "checked" if manifest.checksum else "without a checksum"
        lines.append(f"  from {to_one_line(manifest.repository)}, {checked}")
    return "\n".join(lines)


def describe_server(server: Mapping[str, Any]) -> str:
    """The server's name, and all that will be run or connected to."""
    if "url" in server:
        return f"{server['name']}: {server['url']}"
    environment = [f"{name}={value}" for name, value in server.get("env", {}).items()]
    command_line = [*environment, server["command"], *server.get("args", [])]
    return f"{server['name']}: {shlex.join(command_line)}"


def check_with_daemon(plan: "InstallPlan", home: Path) -> None:
    """Have a running daemon load the agents. Raises CrabupError if it cannot use them."""
    problems = reload_daemon(home)
    for path in (f"agents/{name}.toml" for name in [*plan.agents, plan.agent] if name):
        for problem in problems:
            if str(home / path) in problem:
                raise CrabupError(f"the daemon cannot use it, and it was taken back: {problem}")


def reload_daemon(home: Path) -> list[str]:
    """The daemon's problems after a reload; empty if no daemon runs."""
    from crabtalk.client import CannotConnectError, connect_sync

    try:
        with connect_sync(home=home, client="crabup") as client:
            client.reload()
            return list(client.get_stats().problems)
    except CannotConnectError:
        return []


def build_row(receipt: Any, home: Path) -> dict[str, Any]:
    from .manifest import ManifestError, read_manifest

    try:
        description = read_manifest(
            home / "packages" / f"{receipt.package}.toml", receipt.package
        ).description
    except ManifestError:
        description = ""
    skills = {path.split("/")[2] for path in receipt.files if path.startswith("skills/")}
    agents = [Path(path).stem for path in receipt.files if path.startswith("agents/")]
    return {
        "name": receipt.package,
        "description": description,
        "agents": agents,
        "skills": sorted(skills),
        "mcps_for": [Path(path).stem for path in receipt.blocks],
        "commands": receipt.commands,
    }


def format_row(row: dict[str, Any]) -> dict[str, str]:
    additions = [
        f"{kind[:-1]} {name}" for kind in ("agents", "skills", "commands") for name in row[kind]
    ]
    additions += [f"MCP servers for {name}" for name in row["mcps_for"]]
    return {
        "name": row["name"],
        "brings": ", ".join(additions) or "nothing",
        "description": row["description"],
    }
