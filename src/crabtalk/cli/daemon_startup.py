"""Start a daemon for a client that finds none. The daemon outlives the client.

Uses the daemon's command, its socket and its log, and none of its code.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from crabtalk.transport import RunFiles, default_home

from .errors import CommandError

DAEMON_PROGRAM = "crabtalkd"
# Seconds until a daemon must answer: it takes a fraction of one, but longer on slow machines.
START_TIMEOUT = 30.0
POLL_INTERVAL = 0.02
# A daemon that ends may have found another one shutting down; then the next try succeeds.
MAX_ATTEMPTS = 3
LOG_TAIL_SIZE = 4096  # bytes of a log, from its end


def ensure_daemon(
    home: Path | None,
    *,
    start: bool,
    say: Callable[[str], None],
    patience: float = START_TIMEOUT,
) -> None:
    """Return when a daemon answers in `home`. If one had to be started, `say` gets a line about it.

    Blocks: code with an event loop calls it in a thread. Raises CommandError when no daemon answers
    and none may or can be started. However many callers do this at once, one daemon remains.
    """
    root = home or default_home()
    if is_daemon_answering(root):
        return
    if not start:
        run_command = format_daemon_command("run", home)
        raise CommandError(f"no daemon answers in {root}; start one with `{run_command}`")
    child = start_daemon(root, patience)
    # Another process may have started one meanwhile. If that one answers, ours is not needed.
    holder = RunFiles.for_home(root).read_daemon_pid()
    if holder == child.pid:
        stop_command = format_daemon_command("stop", home)
        say(f"started {DAEMON_PROGRAM} in {root}; it stays for next time, `{stop_command}` ends it")
    elif holder is not None:
        child.terminate()
    # A long-lived caller, such as a chat, must not be left with a zombie.
    Thread(target=child.wait, daemon=True).start()


def format_daemon_command(word: str, home: Path | None) -> str:
    """Return the command line a person types, with --home if they named a home."""
    option = "" if home is None else f" --home {shlex.quote(str(home))}"
    return f"{DAEMON_PROGRAM} {word}{option}"


def is_daemon_answering(root: Path) -> bool:
    from crabtalk.client import ConnectionClosedError, DaemonNotRunningError, connect_sync

    try:
        with connect_sync(home=root, client="crabtalk") as client:
            client.ping()
    except (ConnectionClosedError, DaemonNotRunningError):
        return False
    return True


def find_daemon_program() -> str:
    """Return the daemon program installed beside this one, else the first on PATH."""
    beside = Path(sys.executable).with_name(DAEMON_PROGRAM)
    program = str(beside) if os.access(beside, os.X_OK) else shutil.which(DAEMON_PROGRAM)
    if program is None:
        raise CommandError(
            f"{DAEMON_PROGRAM} is not installed; `uv tool install crabtalk` brings it"
        )
    return program


def start_daemon(root: Path, patience: float) -> "subprocess.Popen[bytes]":
    """Start a daemon and wait until one answers, ours or another process's.

    Returns the last child started.
    """
    command = [find_daemon_program(), "run", "--home", str(root)]
    log = prepare_log(root)
    log_size = log.stat().st_size
    deadline = time.monotonic() + patience
    child, tries = spawn_daemon(command, log), 1
    while not is_daemon_answering(root):
        if child.poll() is not None and RunFiles.for_home(root).read_daemon_pid() is None:
            if tries == MAX_ATTEMPTS:
                raise CommandError(
                    f"{DAEMON_PROGRAM} does not start: {read_last_line(log, log_size)}"
                )
            child, tries = spawn_daemon(command, log), tries + 1
        if time.monotonic() > deadline:
            raise CommandError(
                f"{DAEMON_PROGRAM} does not answer in {root} after {patience:g} s; "
                f"its log ends: {read_last_line(log, log_size)}"
            )
        time.sleep(POLL_INTERVAL)
    return child


def prepare_log(root: Path) -> Path:
    """Create the daemon's log if needed and return its path. Raises CommandError on failure."""
    log = root / "logs" / f"{DAEMON_PROGRAM}.log"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.parent.mkdir(mode=0o700, exist_ok=True)
        log.touch(mode=0o600)
    except OSError as error:
        raise CommandError(
            f"cannot use {root}: {error.strerror}; choose another home with --home"
        ) from None
    return log


def spawn_daemon(command: list[str], log: Path) -> "subprocess.Popen[bytes]":
    """Start the daemon in a session of its own, away from our terminal, with stderr to its log."""
    null = subprocess.DEVNULL
    # Agents work here when a client names no directory; our current one may be deleted later.
    directory = Path.home() if Path.home().is_dir() else Path("/")
    with log.open("ab") as stderr:
        return subprocess.Popen(
            command,
            stdin=null,
            stdout=null,
            stderr=stderr,
            start_new_session=True,
            cwd=directory,
        )


def read_last_line(log: Path, offset: int) -> str:
    """Return the last line written to the log after its first `offset` bytes."""
    with log.open("rb") as file:
        file.seek(max(offset, log.stat().st_size - LOG_TAIL_SIZE))
        lines = file.read().decode(errors="replace").split("\n")
    last_line = next((line for line in reversed(lines) if line.strip()), "")
    return (
        last_line.removeprefix(f"{DAEMON_PROGRAM}: ")
        or f"it says nothing; `{DAEMON_PROGRAM} run` may say more"
    )
