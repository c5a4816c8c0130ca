"""Processes, identified by pid and start time.

A pid file outlives its process and even a reboot, and pids are reused, so a pid alone proves
nothing.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Seconds between two checks of a process. Nothing notifies us when a process that is no child ends.
POLL_INTERVAL = 0.02


@dataclass(frozen=True, slots=True)
class TrackedProcess:
    """A process that was seen alive. `started` is its start time in the platform's format."""

    pid: int
    started: str

    @classmethod
    def find_by_pid(cls, pid: int) -> "TrackedProcess | None":
        """The process with this pid now; None if there is none, or it is a zombie."""
        start_time = get_start_time(pid)
        return cls(pid, start_time) if start_time else None

    @classmethod
    def from_json(cls, value: Any) -> "TrackedProcess | None":
        """Read from the JSON of a pid file, which may be damaged."""
        match value:
            case {"pid": int(pid), "started": str(started)} if pid > 1:
                return cls(pid, started)
        return None

    def to_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "started": self.started}

    def is_alive(self) -> bool:
        return get_start_time(self.pid) == self.started != ""

    def send_signal(self, number: signal.Signals) -> None:
        """Signal this process, and never another one. A process that is gone is no error."""
        with suppress(ProcessLookupError):
            if not hasattr(os, "pidfd_open"):
                if self.is_alive():
                    os.kill(self.pid, number)
                return
            handle = os.pidfd_open(self.pid)
            try:
                # The handle refers to one process: the one checked here is the one signalled.
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
        """Send SIGTERM, and SIGKILL to its process group if it does not end in time."""
        self.send_signal(signal.SIGTERM)
        if not self.wait(grace):
            with suppress(ProcessLookupError, PermissionError):
                if self.is_alive() and os.getpgid(self.pid) == self.pid:
                    os.killpg(self.pid, signal.SIGKILL)
            self.send_signal(signal.SIGKILL)
            self.wait(grace)


def get_start_time(pid: int) -> str:
    """The start time; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except FileNotFoundError:
        return "" if Path("/proc/self/stat").exists() else read_start_from_ps(pid)
    except OSError:
        return ""
    # The name in parentheses may contain anything, parentheses too.
    rest = text.rpartition(")")[2].split()
    return "" if rest[0] in "ZX" else f"{get_boot_id()}:{rest[19]}"


def get_boot_id() -> str:
    """The id of this boot. Start times are relative to the boot."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def read_start_from_ps(pid: int) -> str:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    state, _, started = result.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else started.strip()
