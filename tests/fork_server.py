"""A program that is loaded once, and forked for every start of it.

`python -P fork_server.py DESCRIPTOR ENTRY MODULE...` loads the modules and ENTRY,
`module:function`, which each process calls. DESCRIPTOR is a control socket. Each byte on it comes
with four descriptors: a status socket and the process's standard streams. On the status socket it
reads a line of JSON that describes the process, and writes the process's pid and later its exit
status.

It imports nothing from the tests, because a user's process would not have that loaded either. It
ends when the control socket is closed.
"""

import fcntl
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from contextlib import suppress
from importlib import import_module
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from typing import Any


class ForkServer:
    def __init__(self, control_socket: socket.socket) -> None:
        self._control_socket = control_socket
        self._status_sockets: dict[int, socket.socket] = {}  # by the pid they report on
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._wakeup_reader.setblocking(False)
        self._wakeup_writer.setblocking(False)

    def serve(self) -> bool:
        """Returns True in every forked process, and False once the control socket is closed."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_writer.fileno())
        while True:
            ready, _, _ = select.select([self._control_socket, self._wakeup_reader], [], [])
            if self._wakeup_reader in ready:
                self._wakeup_reader.recv(1024)
                self._reap_children()
            if self._control_socket in ready:
                data, received, _, _ = socket.recv_fds(self._control_socket, 1, 4)
                if not data:
                    return False
                if self._fork(socket.socket(fileno=received[0]), received[1:]):
                    return True

    def _fork(self, status_socket: socket.socket, streams: list[int]) -> bool:
        with status_socket.makefile("rb") as lines:
            options = json.loads(lines.readline())
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (
                self._control_socket,
                self._wakeup_reader,
                self._wakeup_writer,
                status_socket,
                *self._status_sockets.values(),
            ):
                inherited.close()
            configure_process(options, streams)
            return True
        for stream in streams:
            os.close(stream)
        self._status_sockets[pid] = status_socket
        send_number(status_socket, pid)
        return False

    def _reap_children(self) -> None:
        while self._status_sockets:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._status_sockets.pop(pid) as status_socket:
                send_number(status_socket, os.waitstatus_to_exitcode(status))


def send_number(status_socket: socket.socket, number: int) -> None:
    with suppress(OSError):  # the other end may be closed
        status_socket.sendall(struct.pack("=i", number))


def configure_process(options: dict[str, Any], streams: list[int]) -> None:
    """Set up the forked process with these options and standard streams."""
    if options["new_session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if options["has_terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(options["directory"])
    os.environ.clear()
    os.environ.update(options["environment"])
    time.tzset()
    sys.argv = options["arguments"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        opened = open_standard_stream(number, getattr(sys, name))
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)


def open_standard_stream(number: int, inherited: TextIOWrapper) -> TextIOWrapper:
    """Open a standard stream as Python does when it starts in the same locale."""
    raw = FileIO(number, "wb" if number else "rb", closefd=False)
    raw.name = inherited.name
    write_through = inherited.write_through
    return TextIOWrapper(
        (raw if write_through else BufferedWriter(raw)) if number else BufferedReader(raw),
        inherited.encoding,
        inherited.errors,
        line_buffering=number == 2 or os.isatty(number),
        write_through=write_through,
    )


def main(descriptor: str, entry: str, *modules: str) -> object:
    """Returns what the entry returns, in a forked process."""
    module, _, name = entry.partition(":")
    for module_name in (module, *modules):
        import_module(module_name)
    gc.collect()
    gc.freeze()  # a collection would touch all objects, and each process would copy them
    if not ForkServer(socket.socket(fileno=int(descriptor))).serve():
        return None
    return getattr(sys.modules[module], name)()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))  # type: ignore[arg-type]
