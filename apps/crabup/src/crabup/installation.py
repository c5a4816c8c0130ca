"""Carries out an install plan in a home, and removes a package again. All of it, or nothing."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from crabtalk.transport import replace_file

from .errors import CrabupError
from .install_plan import InstallPlan
from .installers import WantedDistribution, choose_installer, list_installed
from .receipt import Receipt, hash_data, iterate_receipts, make_receipt_path, read_receipt
from .repositories import make_slug

# Repositories of packages with a setup script stay here, because the package may need them later.
REPOSITORIES_PATH = ".cache/repos"


def install_plan(
    plan: InstallPlan,
    home: Path,
    repository: Path | None,
    accept: Callable[[], None] = lambda: None,
) -> None:
    """`accept` checks the result at the end; if it raises, everything is undone.

    The receipt is written first, so that even the remains of a crash can be removed.
    """
    receipt = make_receipt(plan, home)
    try:
        make_directories(home, receipt.directories)
        receipt.write(home)
        if plan.script and repository is not None:
            run_script(plan, home, repository)
        if plan.manifest.commands:
            receipt = pull_commands(plan, home, receipt)
        for addition in plan.files:
            replace_file(home / addition.path, addition.data, addition.mode)
        for path, block in receipt.blocks.items():
            append_block(home / path, block)
        accept()
    except BaseException:
        remove_package(receipt, home)
        raise


def make_receipt(plan: InstallPlan, home: Path) -> Receipt:
    """Raises CrabupError if something is in the way; nothing has been written then."""
    name = plan.manifest.name
    if os.path.lexists(make_receipt_path(home, name)):
        raise CrabupError(f"{name} is here already; `crabup pkg remove {name}` first")
    files = {addition.path: hash_data(addition.data) for addition in plan.files}
    for path in files:
        if os.path.lexists(home / path):
            raise CrabupError(f"{home / path} is there already; move it away, or rename it")
    keeps_repository = bool(plan.script)
    new_paths = [*files, f"packages/{name}.receipt.json"]
    if keeps_repository:
        new_paths.append(f"{REPOSITORIES_PATH}/x")
    return Receipt(
        name,
        files,
        list_missing_directories(home, new_paths),
        {f"agents/{plan.agent}.toml": make_block(plan, home)} if plan.block else {},
        [],
        make_slug(plan.manifest.repository or name) if keeps_repository else "",
    )


def make_block(plan: InstallPlan, home: Path) -> str:
    """The MCP servers as text that is appended to an agent's file."""
    path = home / "agents" / f"{plan.agent}.toml"
    try:
        text = path.read_bytes().decode()
        tomllib.loads(text)
    except FileNotFoundError:
        raise CrabupError(f"there is no agent {plan.agent}; name one of {path.parent}") from None
    except ValueError as error:
        raise CrabupError(f"{path} is not valid TOML: {error}; mend it") from None
    block = ("\n" if text.endswith("\n") or not text else "\n\n") + plan.block
    try:
        tomllib.loads(text + block)
    except ValueError:
        raise CrabupError(
            f"{path} has its MCP servers in a list; write them as [[mcps]] tables first"
        ) from None
    if read_server_names(plan.block) & read_server_names(text):
        raise CrabupError(f"{plan.agent} has an MCP server of that name already; rename it")
    return block


def list_missing_directories(home: Path, paths: Iterable[str]) -> list[str]:
    """The parents of `paths` that do not exist yet, outermost first."""
    parents = {str(parent) for path in paths for parent in PurePosixPath(path).parents} - {"."}
    return sorted(parent for parent in parents if not (home / parent).is_dir())


def make_directories(home: Path, directories: Iterable[str]) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for directory in directories:
        (home / directory).mkdir(mode=0o700)


def run_script(plan: InstallPlan, home: Path, repository: Path) -> None:
    """Run the setup script in a copy of the repository that stays. Its output goes to stderr."""
    directory = home / REPOSITORIES_PATH / make_slug(plan.manifest.repository or plan.manifest.name)
    if not directory.exists():
        shutil.copytree(repository, directory, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    command = ["bash", plan.script_file] if plan.script_file else ["bash", "-c", plan.script]
    environment = {
        **os.environ,
        "CRABTALK_HOME": str(home),
        "CRABTALK_PACKAGE": plan.manifest.name,
    }
    result = subprocess.run(
        command, cwd=directory, env=environment, stdout=sys.stderr.fileno(), check=False
    )
    if result.returncode != 0:
        raise CrabupError(
            f"the set-up of {plan.manifest.name} ended with status {result.returncode}; "
            "nothing was added, but what it did itself stays"
        )


def pull_commands(plan: InstallPlan, home: Path, receipt: Receipt) -> Receipt:
    """Install the missing distributions. Each is in the receipt before the next is installed."""
    for distribution in sorted(set(plan.manifest.commands.values())):
        if distribution not in list_installed(home):
            choose_installer(home).install(WantedDistribution(distribution))
            receipt = receipt.with_commands([*receipt.commands, distribution])
            receipt.write(home)
    return receipt


def append_block(path: Path, block: str) -> None:
    path = path.resolve()  # replaces the target of a link, not the link
    replace_file(path, path.read_bytes() + block.encode(), path.stat().st_mode & 0o777)


def remove_package(receipt: Receipt, home: Path) -> list[str]:
    """Remove what the package added. Returns the paths that were edited since and stay."""
    receipt = read_receipt(home, receipt.package) or receipt  # has the commands of a failed add
    edited = [
        path
        for path, written_hash in receipt.files.items()
        if not remove_file(home / path, written_hash)
    ]
    edited += [
        path for path, block in receipt.blocks.items() if not remove_block(home / path, block)
    ]
    others = [other for other in iterate_receipts(home) if other.package != receipt.package]
    for distribution in receipt.commands:
        is_needed = any(distribution in other.commands for other in others)
        if not is_needed and (installed := list_installed(home).get(distribution)) is not None:
            installed[0].uninstall(distribution)
    if receipt.repository and all(other.repository != receipt.repository for other in others):
        shutil.rmtree(home / REPOSITORIES_PATH / receipt.repository, ignore_errors=True)
    make_receipt_path(home, receipt.package).unlink(missing_ok=True)
    for directory in reversed(receipt.directories):
        with suppress(OSError):  # a person has put something into it
            (home / directory).rmdir()
    return edited


def remove_file(path: Path, written_hash: str) -> bool:
    """Whether the file is gone. It stays if it is not what was written."""
    try:
        if path.is_symlink() or hash_data(path.read_bytes()) != written_hash:
            return False
    except FileNotFoundError:
        return True
    path.unlink()
    return True


def remove_block(path: Path, block: str) -> bool:
    """Whether the block is gone. Servers that were edited since stay."""
    path = path.resolve()
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return True
    if text.count(block.encode()) == 1:
        replace_file(path, text.replace(block.encode(), b""), path.stat().st_mode & 0o777)
        return True
    try:
        return not read_server_names(block) & read_server_names(text.decode())
    except ValueError:  # the file is just being edited
        return False


def read_server_names(text: str) -> set[str]:
    servers = tomllib.loads(text).get("mcps", [])
    return {str(server.get("name")) for server in servers if isinstance(server, dict)}
