"""`crabtalkd stop`: sends SIGTERM to the daemon that holds a home's lock, and waits for it."""

import errno
import fcntl
import os
import signal
import time
from pathlib import Path

from crabtalk.transport import RunFiles

# Longer than a daemon takes to drain its requests and exit.
STOP_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.02


class StopError(Exception):
    """The daemon did not stop; says what to do about it."""


def stop_daemon(home: Path, timeout: float = STOP_TIMEOUT_SECONDS) -> int | None:
    """The id of the process that ended, or None if no daemon ran."""
    path = RunFiles.for_home(home).lock_path
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # Trust the lock, not the pid: another process may have the pid by now.
        if is_lock_free(lock):
            return None
        pid = int(os.pread(lock, 32, 0) or 0)
        if not pid:  # not written yet, or already removed
            raise StopError("the daemon there is only just starting or ending; try again")
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        except PermissionError:
            raise StopError(f"process {pid} belongs to another user; ask them to stop it") from None
        deadline = time.monotonic() + timeout
        while not is_lock_free(lock):
            if time.monotonic() > deadline:
                raise StopError(f"process {pid} does not end; `kill -9 {pid}` ends it")
            time.sleep(POLL_SECONDS)
        return pid
    finally:
        os.close(lock)


def is_lock_free(lock: int) -> bool:
    """Whether no process holds the lock. Takes it for a moment to find out."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True
