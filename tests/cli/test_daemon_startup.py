"""A command that finds no daemon starts exactly one, or says why it cannot."""

import asyncio
import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from crabtalk.transport import RunFiles
from tests.cli.cli_process import CRABTALK, CliOutcome, run_at_terminal
from tests.cli.cli_process import run_crabtalk as run
from tests.cli.leftover_daemons import configure_home, get_daemon_pid
from tests.daemon.in_process_daemon import PATIENCE

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "src", ROOT / "apps" / "tui" / "src")


def format_started(home: Path) -> str:
    stop = f"crabtalkd stop --home {home}"
    return f"started crabtalkd in {home}; it stays for next time, `{stop}` ends it\n"


@pytest.mark.req("cli.start")
async def test_a_command_starts_a_daemon_and_leaves_it_running(
    home: Path,
) -> None:
    async with configure_home(home):
        outcome = await run("ask", "--home", home, "!say hi")
        assert (outcome.code, outcome.out, outcome.err) == (0, "hi\n", format_started(home))
        pid = get_daemon_pid(home)
        assert (await run("ask", "--home", home, "!say hello")).output == "hello\n"
        assert (await run("skills", "--home", home)).code == 0
        assert get_daemon_pid(home) == pid


@pytest.mark.req("cli.start")
async def test_a_started_daemon_is_detached_from_the_terminal(home: Path) -> None:
    async with configure_home(home):
        code, screen = await run_at_terminal("stats", "--home", home)
        assert code == 0
        assert screen.startswith(format_started(home))
        pid = get_daemon_pid(home)
        assert os.getsid(pid) == os.getpgid(pid) == pid
        null, log = Path("/dev/null"), home / "logs" / "crabtalkd.log"
        assert (await run("stats", "--home", home)).output
        try:
            open_files = [Path(f"/proc/{pid}/fd/{number}").readlink() for number in range(3)]
        except PermissionError:
            pytest.skip("the daemon hides its open files from other processes; run this as root")
        assert open_files == [null, null, log]


@pytest.mark.req("cli.start.once")
async def test_many_commands_at_once_start_one_daemon(home: Path) -> None:
    async with configure_home(home):
        outcome = await asyncio.gather(*(run("stats", "--home", home, "--json") for _ in range(5)))
        assert [each.code for each in outcome] == [0] * 5
        assert [each.err for each in outcome if each.err] == [format_started(home)]
        await wait_until_alone(home)


async def wait_until_alone(home: Path) -> None:
    """Wait until the daemon is the only daemon process of the home."""
    async with asyncio.timeout(PATIENCE):
        while list_daemons(home) != [get_daemon_pid(home)]:
            await asyncio.sleep(0.005)


def list_daemons(home: Path) -> list[int]:
    """List the daemon processes of a home, also those that are still starting."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if is_daemon(path, home)]


@pytest.mark.req("cli.start.once")
async def test_a_daemon_started_while_another_drains_waits_for_it(home: Path) -> None:
    """A draining daemon has closed its socket and still holds its lock."""
    async with configure_home(home):
        files = RunFiles.for_home(home)
        files.directory.mkdir(mode=0o700)
        files.lock_path.write_text(str(os.getpid()))
        with files.lock_path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            coming = asyncio.ensure_future(run("stats", "--home", home))
            await wait_for_refusal(home)
            os.ftruncate(lock.fileno(), 0)
        outcome = await coming
        assert (outcome.code, outcome.err) == (0, format_started(home))


async def wait_for_refusal(home: Path) -> None:
    """Wait until a daemon process has started in the home and ended because it was locked."""
    seen = False
    async with asyncio.timeout(PATIENCE):
        while True:
            running = bool(list_daemons(home))
            if seen and not running:
                return
            seen = seen or running
            await asyncio.sleep(0.005)


def is_daemon(process: Path, home: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"run" in words and os.fsencode(home) in words


@pytest.mark.parametrize(
    "words", [("--no-start", "stats"), ("stats", "--no-start"), ("ask", "hi", "--no-start")]
)
@pytest.mark.req("cli.start.forbidden")
async def test_no_start_gives_an_error_with_the_start_command(
    home: Path, words: tuple[str, ...]
) -> None:
    outcome = await run(*words, CRABTALK_HOME=str(home))
    assert outcome.error == f"no daemon answers in {home}; start one with `crabtalkd run`"
    assert not home.exists()


@pytest.mark.req("cli.start.forbidden")
async def test_an_environment_variable_forbids_starting(home: Path) -> None:
    outcome = await run("stats", "--home", home, CRABTALK_NO_START="1")
    assert outcome.error.endswith(f"start one with `crabtalkd run --home {home}`")
    assert not home.exists()


@pytest.mark.req("cli.start.failed")
async def test_a_failed_start_reports_the_daemons_error(home: Path) -> None:
    async with configure_home(home):
        (home / "config.toml").write_text("[daemon")
        outcome = await run("stats", "--home", home)
        assert outcome.error.startswith(f"crabtalkd does not start: {home / 'config.toml'} is not")
        assert outcome.error.endswith("mend it or move it away")


def run_without_crabtalkd(home: Path, path: str, *, patience: float = 5) -> CliOutcome:
    """Start a daemon from a Python that has no crabtalkd beside it."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from crabtalk.cli.errors import CommandError\n"
        "from crabtalk.cli.daemon_startup import ensure_daemon\n"
        "try:\n"
        f"    ensure_daemon(Path({str(home)!r}), start=True, say=print, patience={patience})\n"
        "except CommandError as error:\n"
        "    sys.exit(f'crabtalk: {error}')\n"
    )
    packages = [str(place) for place in sys.path if place.endswith("site-packages")]
    env = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONHOME"},
        "PYTHONPATH": os.pathsep.join([*map(str, SOURCES), *packages]),
        "PATH": path,
    }
    with tempfile.TemporaryDirectory() as directory:
        bare = Path(directory) / "python"
        bare.symlink_to(Path(sys.executable).resolve())
        words = [str(bare), "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    return CliOutcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.req("cli.start.failed")
def test_a_missing_daemon_program_gives_the_install_command(home: Path) -> None:
    outcome = run_without_crabtalkd(home, "/nowhere")
    assert outcome.error == "crabtalkd is not installed; `uv tool install crabtalk` brings it"


@pytest.mark.req("cli.start")
async def test_the_daemon_program_is_found_on_the_path(home: Path) -> None:
    async with configure_home(home):
        outcome = await asyncio.to_thread(
            run_without_crabtalkd, home, str(CRABTALK.parent), patience=PATIENCE
        )
        assert (outcome.code, outcome.out) == (0, format_started(home))


def install_stand_in(directory: Path, script: str) -> str:
    """Install a fake crabtalkd and return a PATH that finds it."""
    program = directory / "sorts" / "crabtalkd"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return f"{program.parent}:/usr/bin:/bin"


@pytest.mark.req("cli.start.failed")
def test_waiting_for_a_daemon_that_does_not_answer_times_out(home: Path, tmp_path: Path) -> None:
    (home / "logs").mkdir(parents=True)
    path = install_stand_in(
        tmp_path,
        f"echo 'first' > {home}/logs/crabtalkd.log\n"
        f"echo 'the tide is too low' >> {home}/logs/crabtalkd.log\n"
        f"echo $$ > {tmp_path}/pid\nexec sleep 30",
    )
    outcome = run_without_crabtalkd(home, path, patience=1)
    assert outcome.error == (
        f"crabtalkd does not answer in {home} after 1 s; its log ends: the tide is too low"
    )
    os.kill(int((tmp_path / "pid").read_text()), 9)


@pytest.mark.req("cli.start.failed")
def test_an_impossible_home_gives_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = run_without_crabtalkd(tmp_path / "file" / "home", str(CRABTALK.parent))
    assert outcome.error.startswith(f"cannot use {tmp_path / 'file' / 'home'}: Not a directory; ")


@pytest.mark.req("cli.start.failed")
async def test_old_log_lines_are_not_reported(home: Path) -> None:
    async with configure_home(home):
        (home / "logs").mkdir()
        (home / "logs" / "crabtalkd.log").write_text("the tide was too low\n")
        (home / "config.toml").write_text("[daemon")
        outcome = await run("stats", "--home", home)
        assert outcome.error.startswith(f"crabtalkd does not start: {home / 'config.toml'} is not")


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.req("cli.start.failed")
def test_a_daemon_that_ends_silently_is_not_restarted_forever(
    home: Path, tmp_path: Path, status: int
) -> None:
    path = install_stand_in(tmp_path, f"echo x >> {tmp_path}/starts\nexit {status}")
    outcome = run_without_crabtalkd(home, path)
    assert outcome.error.startswith("crabtalkd does not start: it says nothing; ")
    assert (tmp_path / "starts").read_text().count("x") < 10


@pytest.mark.req("cli.start")
async def test_after_a_kill_the_next_command_starts_a_new_daemon(
    home: Path,
) -> None:
    async with configure_home(home):
        await run("ask", "--home", home, "!say hi")
        os.kill(get_daemon_pid(home), 9)
        await asyncio.to_thread(wait_until_gone, home)
        outcome = await run("ask", "--home", home, "!say hello")
        assert (outcome.code, outcome.out, outcome.err) == (0, "hello\n", format_started(home))


def wait_until_gone(home: Path) -> None:
    """Wait until a killed process accepts no connections any more."""
    with suppress(ConnectionRefusedError):
        while True:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(RunFiles.for_home(home).socket_path))
