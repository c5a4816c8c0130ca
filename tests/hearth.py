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


class Hearth:
    def __init__(self, door: socket.socket) -> None:
        self._door = door
        self._tellers: dict[int, socket.socket] = {}  # by the pid they tell of
        self._deaths, self._bell = socket.socketpair()
        self._deaths.setblocking(False)
        self._bell.setblocking(False)

    def serve(self) -> bool:
        """True in every process that it makes; False once nobody asks any more."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._bell.fileno())
        while True:
            ready, _, _ = select.select([self._door, self._deaths], [], [])
            if self._deaths in ready:
                self._deaths.recv(1024)
                self._bury()
            if self._door in ready:
                data, received, _, _ = socket.recv_fds(self._door, 1, 4)
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
            for each in (self._door, self._deaths, self._bell, teller, *self._tellers.values()):
                each.close()
            become(order, streams)
            return True
        for stream in streams:
            os.close(stream)
        self._tellers[pid] = teller
        tell(teller, pid)
        return False

    def _bury(self) -> None:
        while self._tellers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._tellers.pop(pid) as teller:
                tell(teller, os.waitstatus_to_exitcode(status))


def tell(teller: socket.socket, number: int) -> None:
    with suppress(OSError):  # of whoever has stopped listening
        teller.sendall(struct.pack("=i", number))


def become(order: dict[str, Any], streams: list[int]) -> None:
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
        fresh = opened(number, getattr(sys, name))
        setattr(sys, name, fresh)
        setattr(sys, f"__{name}__", fresh)


def opened(number: int, former: TextIOWrapper) -> TextIOWrapper:
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
    if not Hearth(socket.socket(fileno=int(door))).serve():
        return None
    return getattr(sys.modules[module], name)()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))  # type: ignore[arg-type]
