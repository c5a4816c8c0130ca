"""Installations: a plan carried out in a home, and undone. All of it, or nothing."""

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

# Where a package whose set-up was run keeps its repository, which it may need ever after.
REPOSITORIES_PATH = ".cache/repos"


def install_plan(
    plan: InstallPlan,
    home: Path,
    repository: Path | None,
    accept: Callable[[], None] = lambda: None,
) -> None:
    """`accept` looks at the result last, and raises what makes it undone.

    The receipt is on disk before anything else, so what a crash leaves can be removed too.
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
    """Raises CommandError where something is in the way; nothing has been written then."""
    name = plan.manifest.name
    if os.path.lexists(make_receipt_path(home, name)):
        raise CrabupError(f"{name} is here already; `crabup pkg remove {name}` first")
    files = {addition.path: hash_data(addition.data) for addition in plan.files}
    for path in files:
        if os.path.lexists(home / path):
            raise CrabupError(f"{home / path} is there already; move it away, or rename it")
    keeps_repository = bool(plan.script)
    wanted = [*files, f"packages/{name}.receipt.json"]
    if keeps_repository:
        wanted.append(f"{REPOSITORIES_PATH}/x")
    return Receipt(
        name,
        files,
        list_missing_directories(home, wanted),
        {f"agents/{plan.agent}.toml": make_block(plan, home)} if plan.block else {},
        [],
        make_slug(plan.manifest.repository or name) if keeps_repository else "",
    )


def make_block(plan: InstallPlan, home: Path) -> str:
    """The servers, as they will stand at the end of an agent's file."""
    path = home / "agents" / f"{plan.agent}.toml"
    try:
        before = path.read_bytes().decode()
        tomllib.loads(before)
    except FileNotFoundError:
        raise CrabupError(f"there is no agent {plan.agent}; name one of {path.parent}") from None
    except ValueError as error:
        raise CrabupError(f"{path} is not valid TOML: {error}; mend it") from None
    block = ("\n" if before.endswith("\n") or not before else "\n\n") + plan.block
    try:
        tomllib.loads(before + block)
    except ValueError:
        raise CrabupError(
            f"{path} has its MCP servers in a list; write them as [[mcps]] tables first"
        ) from None
    if read_server_names(plan.block) & read_server_names(before):
        raise CrabupError(f"{plan.agent} has an MCP server of that name already; rename it")
    return block


def list_missing_directories(home: Path, paths: Iterable[str]) -> list[str]:
    """Those above `paths` that are not there yet, outermost first."""
    above = {str(each) for path in paths for each in PurePosixPath(path).parents} - {"."}
    return sorted(each for each in above if not (home / each).is_dir())


def make_directories(home: Path, directories: Iterable[str]) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for directory in directories:
        (home / directory).mkdir(mode=0o700)


def run_script(plan: InstallPlan, home: Path, repository: Path) -> None:
    """In a copy of the repository that stays. What it says goes to stderr."""
    place = home / REPOSITORIES_PATH / make_slug(plan.manifest.repository or plan.manifest.name)
    if not place.exists():
        shutil.copytree(repository, place, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    command = ["bash", plan.script_file] if plan.script_file else ["bash", "-c", plan.script]
    environment = {
        **os.environ,
        "CRABTALK_HOME": str(home),
        "CRABTALK_PACKAGE": plan.manifest.name,
    }
    result = subprocess.run(
        command, cwd=place, env=environment, stdout=sys.stderr.fileno(), check=False
    )
    if result.returncode != 0:
        raise CrabupError(
            f"the set-up of {plan.manifest.name} ended with status {result.returncode}; "
            "nothing was added, but what it did itself stays"
        )


def pull_commands(plan: InstallPlan, home: Path, receipt: Receipt) -> Receipt:
    """Those that are not here yet. Each is in the receipt before the next."""
    for distribution in sorted(set(plan.manifest.commands.values())):
        if distribution not in list_installed(home):
            choose_installer(home).install(WantedDistribution(distribution))
            receipt = receipt.with_commands([*receipt.commands, distribution])
            receipt.write(home)
    return receipt


def append_block(path: Path, block: str) -> None:
    path = path.resolve()  # a link is to stay one
    replace_file(path, path.read_bytes() + block.encode(), path.stat().st_mode & 0o777)


def remove_package(receipt: Receipt, home: Path) -> list[str]:
    """Takes away what was added. Returns the paths of what was edited since, which stays."""
    receipt = read_receipt(home, receipt.package) or receipt  # with the commands of a cut-off add
    kept = [path for path, known in receipt.files.items() if not remove_file(home / path, known)]
    kept += [path for path, block in receipt.blocks.items() if not remove_block(home / path, block)]
    others = [other for other in iterate_receipts(home) if other.package != receipt.package]
    for distribution in receipt.commands:
        is_needed = any(distribution in other.commands for other in others)
        if not is_needed and (found := list_installed(home).get(distribution)) is not None:
            found[0].uninstall(distribution)
    if receipt.repository and all(other.repository != receipt.repository for other in others):
        shutil.rmtree(home / REPOSITORIES_PATH / receipt.repository, ignore_errors=True)
    make_receipt_path(home, receipt.package).unlink(missing_ok=True)
    for directory in reversed(receipt.directories):
        with suppress(OSError):  # somebody keeps something in it
            (home / directory).rmdir()
    return kept


def remove_file(path: Path, known: str) -> bool:
    """Whether it is gone: one that is not what was written stays."""
    try:
        if path.is_symlink() or hash_data(path.read_bytes()) != known:
            return False
    except FileNotFoundError:
        return True
    path.unlink()
    return True


def remove_block(path: Path, block: str) -> bool:
    """Whether nothing of it is left: servers that were edited since stay."""
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
    except ValueError:  # somebody is in the middle of an edit
        return False


def read_server_names(text: str) -> set[str]:
    servers = tomllib.loads(text).get("mcps", [])
    return {str(server.get("name")) for server in servers if isinstance(server, dict)}
