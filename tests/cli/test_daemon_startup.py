"""Starting: a command that finds no daemon leaves one behind, exactly one, or says why not."""

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
async def test_who_finds_no_daemon_starts_one_says_so_and_leaves_it_for_the_next(
    home: Path,
) -> None:
    async with configure_home(home):
        said = await run("ask", "--home", home, "!say hi")
        assert (said.code, said.out, said.err) == (0, "hi\n", format_started(home))
        pid = get_daemon_pid(home)
        assert (await run("ask", "--home", home, "!say hello")).output == "hello\n"
        assert (await run("skills", "--home", home)).code == 0
        assert get_daemon_pid(home) == pid


@pytest.mark.req("cli.start")
async def test_it_is_out_of_reach_of_the_terminal_it_was_started_at(home: Path) -> None:
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
async def test_of_many_who_start_one_at_once_one_does(home: Path) -> None:
    async with configure_home(home):
        said = await asyncio.gather(*(run("stats", "--home", home, "--json") for _ in range(5)))
        assert [each.code for each in said] == [0] * 5
        assert [each.err for each in said if each.err] == [format_started(home)]
        await wait_until_alone(home)


async def wait_until_alone(home: Path) -> None:
    """Until the daemon is the only process that was to be one."""
    async with asyncio.timeout(PATIENCE):
        while list_daemons(home) != [get_daemon_pid(home)]:
            await asyncio.sleep(0.005)


def list_daemons(home: Path) -> list[int]:
    """The processes that are the daemon of a home, or want to be."""
    return [int(each.name) for each in Path("/proc").glob("[0-9]*") if is_daemon(each, home)]


@pytest.mark.req("cli.start.once")
async def test_one_that_comes_while_another_leaves_waits_for_it(home: Path) -> None:
    """A daemon that drains has left its socket, and still has its lock."""
    async with configure_home(home):
        files = RunFiles.for_home(home)
        files.directory.mkdir(mode=0o700)
        files.lock_path.write_text(str(os.getpid()))
        with files.lock_path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            coming = asyncio.ensure_future(run("stats", "--home", home))
            await wait_for_refusal(home)
            os.ftruncate(lock.fileno(), 0)
        said = await coming
        assert (said.code, said.err) == (0, format_started(home))


async def wait_for_refusal(home: Path) -> None:
    """Until a daemon was started in the home, and found it taken: /proc tells of both."""
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
async def test_who_forbids_it_is_told_how_to_start_one(home: Path, words: tuple[str, ...]) -> None:
    said = await run(*words, CRABTALK_HOME=str(home))
    assert said.error == f"no daemon answers in {home}; start one with `crabtalkd run`"
    assert not home.exists()


@pytest.mark.req("cli.start.forbidden")
async def test_the_environment_can_forbid_it_for_good(home: Path) -> None:
    said = await run("stats", "--home", home, CRABTALK_NO_START="1")
    assert said.error.endswith(f"start one with `crabtalkd run --home {home}`")
    assert not home.exists()


@pytest.mark.req("cli.start.failed")
async def test_why_it_does_not_start_is_told_in_its_own_words(home: Path) -> None:
    async with configure_home(home):
        (home / "config.toml").write_text("[daemon")
        said = await run("stats", "--home", home)
        assert said.error.startswith(f"crabtalkd does not start: {home / 'config.toml'} is not")
        assert said.error.endswith("mend it or move it away")


def run_without_crabtalkd(home: Path, path: str, *, patience: float = 5) -> CliOutcome:
    """Starting, by a Python that has no crabtalkd beside it."""
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
def test_a_program_that_is_not_there_is_named_with_what_brings_it(home: Path) -> None:
    said = run_without_crabtalkd(home, "/nowhere")
    assert said.error == "crabtalkd is not installed; `uv tool install crabtalk` brings it"


@pytest.mark.req("cli.start")
async def test_a_program_elsewhere_is_found_by_the_path(home: Path) -> None:
    async with configure_home(home):
        said = await asyncio.to_thread(
            run_without_crabtalkd, home, str(CRABTALK.parent), patience=PATIENCE
        )
        assert (said.code, said.out) == (0, format_started(home))


def install_stand_in(directory: Path, script: str) -> str:
    """A crabtalkd of another sort, and the path to find it by."""
    program = directory / "sorts" / "crabtalkd"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return f"{program.parent}:/usr/bin:/bin"


@pytest.mark.req("cli.start.failed")
def test_one_that_does_not_answer_is_not_waited_for_for_ever(home: Path, tmp_path: Path) -> None:
    (home / "logs").mkdir(parents=True)
    path = install_stand_in(
        tmp_path,
        f"echo 'first' > {home}/logs/crabtalkd.log\n"
        f"echo 'the tide is too low' >> {home}/logs/crabtalkd.log\n"
        f"echo $$ > {tmp_path}/pid\nexec sleep 30",
    )
    said = run_without_crabtalkd(home, path, patience=1)
    assert said.error == (
        f"crabtalkd does not answer in {home} after 1 s; its log ends: the tide is too low"
    )
    os.kill(int((tmp_path / "pid").read_text()), 9)


@pytest.mark.req("cli.start.failed")
def test_a_home_that_cannot_be_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = run_without_crabtalkd(tmp_path / "file" / "home", str(CRABTALK.parent))
    assert said.error.startswith(f"cannot use {tmp_path / 'file' / 'home'}: Not a directory; ")


@pytest.mark.req("cli.start.failed")
async def test_a_reason_from_long_ago_is_not_told(home: Path) -> None:
    async with configure_home(home):
        (home / "logs").mkdir()
        (home / "logs" / "crabtalkd.log").write_text("the tide was too low\n")
        (home / "config.toml").write_text("[daemon")
        said = await run("stats", "--home", home)
        assert said.error.startswith(f"crabtalkd does not start: {home / 'config.toml'} is not")


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.req("cli.start.failed")
def test_one_that_ends_without_a_word_is_not_started_for_ever(
    home: Path, tmp_path: Path, status: int
) -> None:
    path = install_stand_in(tmp_path, f"echo x >> {tmp_path}/starts\nexit {status}")
    said = run_without_crabtalkd(home, path)
    assert said.error.startswith("crabtalkd does not start: it says nothing; ")
    assert (tmp_path / "starts").read_text().count("x") < 10


@pytest.mark.req("cli.start")
async def test_what_is_said_to_a_daemon_that_was_killed_is_answered_by_the_next(
    home: Path,
) -> None:
    async with configure_home(home):
        await run("ask", "--home", home, "!say hi")
        os.kill(get_daemon_pid(home), 9)
        await asyncio.to_thread(wait_until_gone, home)
        said = await run("ask", "--home", home, "!say hello")
        assert (said.code, said.out, said.err) == (0, "hello\n", format_started(home))


def wait_until_gone(home: Path) -> None:
    """Until nothing is left of a killed process that could take a connection."""
    with suppress(ConnectionRefusedError):
        while True:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(RunFiles.for_home(home).socket_path))
