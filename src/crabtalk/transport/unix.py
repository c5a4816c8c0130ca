"""Unix sockets: binding one that only its owner can use, connecting, and the caller's identity."""

import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .limits import BACKLOG

# The longest path that fits in sockaddr_un with its NUL: 108 bytes on Linux, 104 on macOS and BSD.
MAX_SOCKET_PATH = 107 if sys.platform == "linux" else 103


def listen_unix(path: Path) -> socket.socket:
    """Bind `path` with mode 0600 and listen, replacing a socket on which no process answers.

    Raises OSError (EADDRINUSE) when a process answers there: a live socket is never touched.
    """
    if path.exists() or path.is_symlink():
        remove_stale_socket(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with open_socket_address(path) as address:
            sock.bind(address)
        # No client can connect before listen(), so the mode is never looser than 0600 for any of
        # them.
        path.chmod(0o600)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def connect_unix(path: Path) -> socket.socket:
    """Return a connected socket. Raises OSError; BlockingIOError while the backlog is full.

    Event loops get a connected socket, because asyncio's treats BlockingIOError as a connection.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        with open_socket_address(path) as address:
            sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def remove_stale_socket(path: Path) -> None:
    """Unlink a socket file whose process is gone. Raises OSError when a process answers."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise FileExistsError(f"{path} exists and is not a socket; move it away")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe,
        open_socket_address(path) as address,
    ):
        probe.settimeout(1)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        else:
            raise FileExistsError(f"another program answers on {path}; stop it first")


@contextmanager
def open_socket_address(path: Path) -> Iterator[str]:
    """Give a name for `path` that fits in a socket address, valid inside the block.

    Homes can be deeper than an address is long. On Linux an open directory gives a short name.
    """
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        yield str(path)
        return
    if sys.platform != "linux":
        raise OSError(
            f"the socket path {path} is longer than {MAX_SOCKET_PATH} bytes; use a shorter home"
        )
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def read_peer_uid(sock: socket.socket) -> int | None:
    """The user at the other end of a Unix socket, as the kernel recorded it at connect."""
    if sys.platform == "linux":
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        return int(uid)
    else:  # noqa: RET505 - the type checker reads one platform at a time
        # macOS and the BSDs: level SOL_LOCAL (0), option LOCAL_PEERCRED (1), struct xucred.
        try:
            credentials = sock.getsockopt(0, 1, 76)
        except OSError:
            return None
        return int(struct.unpack_from("=II", credentials)[1])
