"""Starting: a daemon for whoever finds none. It stays when its starter has left.

Knows the daemon by its command, its socket and its log; nothing of what is inside it.
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
# Seconds until a daemon must answer: it takes a fraction of one, but not on every machine.
START_TIMEOUT = 30.0
POLL_INTERVAL = 0.02
# One that ends may have found another daemon on its way out; the next finds none.
MAX_ATTEMPTS = 3
LOG_TAIL_SIZE = 4096  # bytes of a log, from its end


def ensure_daemon(
    home: Path | None,
    *,
    start: bool,
    say: Callable[[str], None],
    patience: float = START_TIMEOUT,
) -> None:
    """Returns when a daemon answers in `home`. Says so in a line if it had to start one.

    Blocks: whoever has an event loop calls it in a thread. Raises CommandError when there is none,
    and none may or can be started. However many do this at once, there is one daemon in the end.
    """
    root = home or default_home()
    if is_daemon_answering(root):
        return
    if not start:
        beginning = format_daemon_command("run", home)
        raise CommandError(f"no daemon answers in {root}; start one with `{beginning}`")
    child = start_daemon(root, patience)
    # Others may have started one at the same time: theirs answers, and ours is not needed.
    holder = RunFiles.for_home(root).read_daemon_pid()
    if holder == child.pid:
        ending = format_daemon_command("stop", home)
        say(f"started {DAEMON_PROGRAM} in {root}; it stays for next time, `{ending}` ends it")
    elif holder is not None:
        child.terminate()
    # Whoever lives on, such as a chat, is not left with a dead child.
    Thread(target=child.wait, daemon=True).start()


def format_daemon_command(word: str, home: Path | None) -> str:
    """What a person types, for the home they named."""
    named = "" if home is None else f" --home {shlex.quote(str(home))}"
    return f"{DAEMON_PROGRAM} {word}{named}"


def is_daemon_answering(root: Path) -> bool:
    from crabtalk.client import ConnectionClosedError, DaemonNotRunningError, connect_sync

    try:
        with connect_sync(home=root, client="crabtalk") as client:
            client.ping()
    except (ConnectionClosedError, DaemonNotRunningError):
        return False
    return True


def find_daemon_program() -> str:
    """The one that was installed with us, else the first there is."""
    beside = Path(sys.executable).with_name(DAEMON_PROGRAM)
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(DAEMON_PROGRAM)
    if found is None:
        raise CommandError(
            f"{DAEMON_PROGRAM} is not installed; `uv tool install crabtalk` brings it"
        )
    return found


def start_daemon(root: Path, patience: float) -> "subprocess.Popen[bytes]":
    """The last one we started, when a daemon answers: that one or another's."""
    command = [find_daemon_program(), "run", "--home", str(root)]
    log = prepare_log(root)
    known = log.stat().st_size
    deadline = time.monotonic() + patience
    child, tries = spawn_daemon(command, log), 1
    while not is_daemon_answering(root):
        if child.poll() is not None and RunFiles.for_home(root).read_daemon_pid() is None:
            if tries == MAX_ATTEMPTS:
                raise CommandError(f"{DAEMON_PROGRAM} does not start: {read_last_line(log, known)}")
            child, tries = spawn_daemon(command, log), tries + 1
        if time.monotonic() > deadline:
            raise CommandError(
                f"{DAEMON_PROGRAM} does not answer in {root} after {patience:g} s; "
                f"its log ends: {read_last_line(log, known)}"
            )
        time.sleep(POLL_INTERVAL)
    return child


def prepare_log(root: Path) -> Path:
    """The daemon's own log, which is there from now on. Raises why it cannot be."""
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
    """Out of reach of our terminal and its signals. Its last words, if any, are in its log."""
    null = subprocess.DEVNULL
    # Where agents work for whoever names no directory; ours may be gone tomorrow.
    place = Path.home() if Path.home().is_dir() else Path("/")
    with log.open("ab") as stderr:
        return subprocess.Popen(
            command,
            stdin=null,
            stdout=null,
            stderr=stderr,
            start_new_session=True,
            cwd=place,
        )


def read_last_line(log: Path, known: int) -> str:
    """Of what it says beyond what was `known` of it."""
    with log.open("rb") as file:
        file.seek(max(known, log.stat().st_size - LOG_TAIL_SIZE))
        lines = file.read().decode(errors="replace").split("\n")
    said = next((line for line in reversed(lines) if line.strip()), "")
    return (
        said.removeprefix(f"{DAEMON_PROGRAM}: ")
        or f"it says nothing; `{DAEMON_PROGRAM} run` may say more"
    )
