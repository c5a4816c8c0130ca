"""The supervisor: a process that restarts one service whenever it ends, with growing pauses.

`python -m crabup.supervisor HOME NAME`, with the unit on standard input, returns when the service
has been started or taken over; a background process then supervises it. SIGTERM ends both, SIGHUP
is passed on, and SIGUSR1 has the pid file written again and a waiting service started at once.
"""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crabtalk.service import Unit, UnitError

from .processes import TrackedProcess
from .supervisor_manager import (
    ALREADY_SUPERVISED,
    GRACE,
    SupervisorManager,
    SupervisorRecord,
    parse_unit,
)

# Seconds until a service is restarted: doubled each time, until it has lived for LASTED_SECONDS.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0
LASTED_SECONDS = 10.0
# Seconds between two checks of a service that is no child of ours, and of the log.
POLL_INTERVAL = 0.5
IDLE_INTERVAL = 30.0
# A log is rotated at this size, if the service does not rotate it itself. One old log is kept.
MAX_LOG_BYTES = 16 * 1024 * 1024

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)


class Supervisor:
    """Runs one service until it is told to stop."""

    def __init__(self, unit: Unit, manager: SupervisorManager) -> None:
        self._unit = unit
        self._manager = manager
        self._popen: subprocess.Popen[bytes] | None = None
        self._child: TrackedProcess | None = None
        self._started_at = 0.0
        self._restart_at = 0.0
        self._pause = FIRST_PAUSE
        self._exit_count = 0
        self._last_exit = ""
        self._is_stopping = False
        self._wakeup_read, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_write, False)

    def begin(self, before: SupervisorRecord | None) -> None:
        """Start the first child, or take over the child of an earlier supervisor. Raises OSError,
        and UnitError if the pid file cannot be written, because no command could find us then."""
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        if before is not None and before.has_child():
            self._child, self._started_at = before.child, time.monotonic()
            self._log_line(f"took over {self._manager.name}, whose supervisor was gone")
        else:
            self._write_record_or_fail()
            self._start_child()
        self._write_record()

    def run(self) -> None:
        while not self._is_stopping:
            self._wait_for_signal()
            self._check_child()
        if self._child is not None:
            self._stop_child()
        self._log_line(f"{self._manager.name} was stopped")
        self._manager.path.unlink(missing_ok=True)

    def _wait_for_signal(self) -> None:
        """Wait until a signal comes, or something is due."""
        if self._child is None:
            timeout = max(0.0, self._restart_at - time.monotonic())
        else:
            timeout = IDLE_INTERVAL if self._popen is not None else POLL_INTERVAL
        if not select.select([self._wakeup_read], [], [], timeout)[0]:
            return
        for number in os.read(self._wakeup_read, 512):
            if number in (signal.SIGTERM, signal.SIGINT):
                self._is_stopping = True
            elif number == signal.SIGHUP and self._child is not None:
                self._child.send_signal(signal.SIGHUP)
            elif number == signal.SIGUSR1:
                self._restart_at = 0.0
                self._write_record()

    def _check_child(self) -> None:
        if self._child is not None and (description := self._describe_exit()):
            self._record_exit(description)
        elif self._child is None and not self._is_stopping and time.monotonic() >= self._restart_at:
            self._restart_child()
        self._rotate_log()

    def _start_child(self) -> None:
        with open_log(self._unit.log) as log:
            self._popen = subprocess.Popen(
                self._unit.command,
                cwd=self._unit.directory,
                env={**os.environ, **self._unit.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        self._child = TrackedProcess.find_by_pid(self._popen.pid) or TrackedProcess(
            self._popen.pid, "ended at once"
        )
        self._started_at = time.monotonic()

    def _restart_child(self) -> None:
        try:
            self._start_child()
        except OSError as error:
            self._record_exit(f"cannot be started ({error})")
        else:
            self._write_record()

    def _describe_exit(self) -> str:
        """How the child ended; empty while it runs."""
        if self._popen is None:
            is_gone = self._child is None or not self._child.is_alive()
            return "ended" if is_gone else ""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self._popen.pid, flags) is None:
            return ""
        # Not reaped yet, so that its pid and process group cannot be reused.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        code = self._popen.wait()
        return (
            f"ended with status {code}" if code >= 0 else f"was ended by {get_signal_name(-code)}"
        )

    def _record_exit(self, description: str) -> None:
        if time.monotonic() - self._started_at >= LASTED_SECONDS:
            self._pause = FIRST_PAUSE
        self._child = self._popen = None
        self._exit_count += 1
        self._last_exit = description
        self._restart_at = time.monotonic() + self._pause
        self._log_line(
            f"{self._manager.name} {description}; it is started again in {self._pause:g} s"
        )
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        self._write_record()

    def _stop_child(self) -> None:
        if self._popen is None:
            if self._child is not None:
                self._child.terminate(GRACE)
            return
        self._popen.terminate()
        end = time.monotonic() + GRACE
        while not self._describe_exit():
            if (remaining := end - time.monotonic()) <= 0:
                os.killpg(self._popen.pid, signal.SIGKILL)
                self._popen.wait()
                return
            if select.select([self._wakeup_read], [], [], remaining)[0]:
                os.read(self._wakeup_read, 512)

    def _write_record(self) -> None:
        with suppress(UnitError):  # a full disk must not end the service
            self._write_record_or_fail()

    def _write_record_or_fail(self) -> None:
        path = self._manager.path
        try:
            SupervisorRecord(
                TrackedProcess.find_by_pid(os.getpid()),
                self._child,
                self._exit_count,
                self._last_exit,
            ).write_file(path)
        except OSError as error:
            raise UnitError(f"cannot write {path}: {error.strerror}; make room for it") from None

    def _log_line(self, sentence: str) -> None:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError), open_log(self._unit.log) as log:
            os.write(log, f"{moment} INFO  crabup: {sentence}\n".encode(errors="backslashreplace"))

    def _rotate_log(self) -> None:
        """Copy and truncate instead of renaming: the service goes on writing to the same file."""
        log = self._unit.log
        with suppress(OSError):
            if log is not None and log.stat().st_size > MAX_LOG_BYTES:
                shutil.copyfile(log, log.with_name(f"{log.name}.1"))
                os.truncate(log, 0)


@contextmanager
def open_log(log: Path | None) -> Iterator[int]:
    """Open the log each time, because the service may have rotated it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    descriptor = os.open(log or os.devnull, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def get_signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(home: str, name: str) -> int:
    manager = SupervisorManager(Path(home), name)
    unit = parse_unit(sys.stdin.buffer.read())
    lock = os.open(manager.lock_path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ALREADY_SUPERVISED
    read_end, write_end = os.pipe()
    if os.fork() != 0:
        # The child writes to the pipe only if it fails.
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            problem = pipe.read()
        os.write(2, problem)
        return 1 if problem else 0
    os.close(read_end)
    os.setsid()
    os.chdir("/")
    detach_output(unit.log)
    supervisor = Supervisor(unit, manager)
    try:
        supervisor.begin(manager.find_record())
    except (OSError, UnitError) as error:
        sentence = str(error) if isinstance(error, UnitError) else f"{error}; install it again"
        os.write(write_end, f"{sentence}\n".encode(errors="backslashreplace"))
        manager.path.unlink(missing_ok=True)
        return 1
    os.close(write_end)
    write_lock_holder(lock)
    supervisor.run()
    return 0


def write_lock_holder(lock: int) -> None:
    """Write our pid into the lock file, once it is safe to send us signals."""
    process = TrackedProcess.find_by_pid(os.getpid())
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(process and process.to_json()).encode(), 0)


def detach_output(log: Path | None) -> None:
    """Detach from the caller's pipes. The output of a crash goes into the log."""
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    with open_log(log) as output:
        os.dup2(output, 1)
        os.dup2(output, 2)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
