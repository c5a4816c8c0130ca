"""Ends a PostgreSQL server and removes its directory once nobody wants it any more.

`python -I -S postgres_keeper.py DIRECTORY` waits for the end of its standard input. That comes also
when whoever started it was killed, and whatever state the server is in then: a stopped one would
keep every signal but two for later. The server is the one that DIRECTORY/data belongs to.
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PATIENCE = 10.0


def end_server(directory: Path) -> None:
    if (pid := find_server_pid(directory / "data")) is not None:
        everyone = [pid, *list_children(pid)]
        for each in everyone:
            send_signal(each, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while any(map(is_running, everyone)) and time.monotonic() < deadline:
            time.sleep(0.005)
    shutil.rmtree(directory, ignore_errors=True)


def find_server_pid(data: Path) -> int | None:
    """The pid of the server that has this directory open."""
    with suppress(OSError, ValueError):
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
        # The file of a server that was killed stays, and its number may be another's by now.
        if Path(f"/proc/{pid}/cwd").readlink() == data.resolve():
            return pid
    return None


def list_children(pid: int) -> list[int]:
    """Each is the leader of a group of its own, so that there is none to send a signal to."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent = read_state_and_parent(stat)
            if parent == pid:
                found.append(int(stat.parent.name))
    return found


def read_state_and_parent(stat: Path) -> tuple[str, int]:
    """State and parent of a process. Its name, before them, may hold anything."""
    state, parent = stat.read_text().rpartition(")")[2].split()[:2]
    return state, int(parent)


def is_running(pid: int) -> bool:
    """Whether it has not ended. One that only waits to be buried has."""
    with suppress(OSError):
        return read_state_and_parent(Path(f"/proc/{pid}/stat"))[0] != "Z"
    return False


def send_signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_server(Path(sys.argv[1]))
