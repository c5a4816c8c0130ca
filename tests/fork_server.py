"""A program that is loaded once, and forked for every start of it.

`python -P hearth.py DOOR ENTRY MODULE...` loads the modules and ENTRY, `module:function`, which is
what a process calls. DOOR is the descriptor of a socket; each byte on it brings four more: a socket
for what is to be said of a process, and its standard streams. On that socket comes a line of JSON,
what the process is to be; its pid goes back, and its status once it has ended.

Imports nothing of the tests', which no process of a user has loaded. Ends when the door is closed.
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
    def __init__(self, door: socket.socket) -> None:
        self._control_socket = door
        self._status_sockets: dict[int, socket.socket] = {}  # by the pid they tell of
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._wakeup_reader.setblocking(False)
        self._wakeup_writer.setblocking(False)

    def serve(self) -> bool:
        """True in every process that it makes; False once nobody asks any more."""
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

    def _fork(self, teller: socket.socket, streams: list[int]) -> bool:
        with teller.makefile("rb") as lines:
            order = json.loads(lines.readline())
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (
                self._control_socket,
                self._wakeup_reader,
                self._wakeup_writer,
                teller,
                *self._status_sockets.values(),
            ):
                each.close()
            configure_process(order, streams)
            return True
        for stream in streams:
            os.close(stream)
        self._status_sockets[pid] = teller
        send_number(teller, pid)
        return False

    def _reap_children(self) -> None:
        while self._status_sockets:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._status_sockets.pop(pid) as teller:
                send_number(teller, os.waitstatus_to_exitcode(status))


def send_number(teller: socket.socket, number: int) -> None:
    with suppress(OSError):  # of whoever has stopped listening
        teller.sendall(struct.pack("=i", number))


def configure_process(order: dict[str, Any], streams: list[int]) -> None:
    """What a process is that was started with these words, there, and with these streams."""
    if order["is_apart"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if order["has_terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    sys.argv = order["words"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        fresh = open_standard_stream(number, getattr(sys, name))
        setattr(sys, name, fresh)
        setattr(sys, f"__{name}__", fresh)


def open_standard_stream(number: int, former: TextIOWrapper) -> TextIOWrapper:
    """As Python opens it when it starts in the same locale."""
    raw = FileIO(number, "wb" if number else "rb", closefd=False)
    raw.name = former.name
    through = former.write_through
    return TextIOWrapper(
        (raw if through else BufferedWriter(raw)) if number else BufferedReader(raw),
        former.encoding,
        former.errors,
        line_buffering=number == 2 or os.isatty(number),
        write_through=through,
    )


def main(door: str, entry: str, *modules: str) -> object:
    """What the entry returns, in a process that calls it."""
    module, _, name = entry.partition(":")
    for each in (module, *modules):
        import_module(each)
    gc.collect()
    gc.freeze()  # what a collection would touch, every process would have to copy
    if not ForkServer(socket.socket(fileno=int(door))).serve():
        return None
    return getattr(sys.modules[module], name)()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))  # type: ignore[arg-type]
