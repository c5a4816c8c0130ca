"""Processes, told apart from those that get their numbers later: a pid and the moment it started.

A pid file outlives its process and even the machine's uptime, so a number alone proves nothing.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Looking at another process again and again; nothing tells us when it changes.
POLL_INTERVAL = 0.02


@dataclass(frozen=True, slots=True)
class TrackedProcess:
    """One process that was seen alive. `started` is in the words of the platform."""

    pid: int
    started: str

    @classmethod
    def find_by_pid(cls, pid: int) -> "TrackedProcess | None":
        """The one that has this number now; None for none, and for one that only waits to be
        buried."""
        started = get_start_time(pid)
        return cls(pid, started) if started else None

    @classmethod
    def from_json(cls, value: Any) -> "TrackedProcess | None":
        """From a pid file, which may say anything."""
        match value:
            case {"pid": int(pid), "started": str(started)} if pid > 1:
                return cls(pid, started)
        return None

    def to_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "started": self.started}

    def is_alive(self) -> bool:
        return get_start_time(self.pid) == self.started != ""

    def send_signal(self, number: signal.Signals) -> None:
        """Signals this process, and never another one. One that is gone is no error."""
        with suppress(ProcessLookupError):
            if not hasattr(os, "pidfd_open"):
                if self.is_alive():
                    os.kill(self.pid, number)
                return
            handle = os.pidfd_open(self.pid)
            try:
                # The handle is held, so whatever is seen now is what gets the signal.
                if self.is_alive():
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time. It need not be a child."""
        end = time.monotonic() + seconds
        while self.is_alive():
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_INTERVAL)
        return True

    def terminate(self, grace: float) -> None:
        """SIGTERM, and SIGKILL to its whole group when that does not help in time."""
        self.send_signal(signal.SIGTERM)
        if not self.wait(grace):
            with suppress(ProcessLookupError, PermissionError):
                if self.is_alive() and os.getpgid(self.pid) == self.pid:
                    os.killpg(self.pid, signal.SIGKILL)
            self.send_signal(signal.SIGKILL)
            self.wait(grace)


def get_start_time(pid: int) -> str:
    """Empty when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except FileNotFoundError:
        return "" if Path("/proc/self/stat").exists() else read_start_from_ps(pid)
    except OSError:
        return ""
    # The name in parentheses may hold anything, parentheses too.
    rest = text.rpartition(")")[2].split()
    return "" if rest[0] in "ZX" else f"{get_boot_id()}:{rest[19]}"


def get_boot_id() -> str:
    """Which boot it is: start times are counted from there."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def read_start_from_ps(pid: int) -> str:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    state, _, started = result.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else started.strip()
