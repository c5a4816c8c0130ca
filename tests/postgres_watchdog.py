"""Ends a PostgreSQL server and removes its directory when the tests are done or were killed.

`python -I -S postgres_watchdog.py DIRECTORY` waits for the end of its standard input, which comes
even when the process that started it was killed. It sends SIGKILL, because a stopped server would
postpone most other signals. The server is the one that uses DIRECTORY/data.
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
        pids = [pid, *list_children(pid)]
        for process in pids:
            send_signal(process, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while any(map(is_running, pids)) and time.monotonic() < deadline:
            time.sleep(0.005)
    shutil.rmtree(directory, ignore_errors=True)


def find_server_pid(data: Path) -> int | None:
    """The pid of the server that uses this data directory."""
    with suppress(OSError, ValueError):
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
        # The file of a killed server stays, and its pid may belong to another process by now.
        if Path(f"/proc/{pid}/cwd").readlink() == data.resolve():
            return pid
    return None


def list_children(pid: int) -> list[int]:
    """The child processes. Each leads its own process group, so they cannot be signalled as one."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent = read_state_and_parent(stat)
            if parent == pid:
                children.append(int(stat.parent.name))
    return children


def read_state_and_parent(stat: Path) -> tuple[str, int]:
    """The state and parent of a process. Its name, which precedes them, may hold any character."""
    state, parent = stat.read_text().rpartition(")")[2].split()[:2]
    return state, int(parent)


def is_running(pid: int) -> bool:
    """Whether the process has not ended. A zombie has."""
    with suppress(OSError):
        return read_state_and_parent(Path(f"/proc/{pid}/stat"))[0] != "Z"
    return False


def send_signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_server(Path(sys.argv[1]))
