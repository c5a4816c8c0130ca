"""What `crabtalkd stop` does: asks the daemon that holds a home's lock to end, and waits for it."""

import errno
import fcntl
import os
import signal
import time
from pathlib import Path

from crabtalk.transport import RunFiles

# Longer than a daemon takes that lets go of requests one by one, and then of itself.
STOP_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.02


class StopError(Exception):
    """It is still there. Says what to do about it."""


def stop_daemon(home: Path, patience: float = STOP_TIMEOUT_SECONDS) -> int | None:
    """The process that ended, or None when there was none."""
    path = RunFiles.for_home(home).lock_path
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # The lock and not the number decides: a number may be another process's by now.
        if is_lock_free(lock):
            return None
        pid = int(os.pread(lock, 32, 0) or 0)
        if not pid:  # it is about to begin, or to end
            raise StopError("the daemon there is only just starting or ending; try again")
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        except PermissionError:
            raise StopError(f"process {pid} is somebody else's; ask them to stop it") from None
        deadline = time.monotonic() + patience
        while not is_lock_free(lock):
            if time.monotonic() > deadline:
                raise StopError(f"process {pid} does not end; `kill -9 {pid}` ends it")
            time.sleep(POLL_SECONDS)
        return pid
    finally:
        os.close(lock)


def is_lock_free(lock: int) -> bool:
    """Whether nobody holds it. Looking takes it for no longer than that."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True
