"""Run one turn over the daemon's socket without the client library, for speed.

Loading the client is half the time of a short command. This module does one request, and only if
the daemon's socket is in its usual place; for everything else there is `options.connect_daemon`.
"""

import os
import socket
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crabtalk.client import Event
    from crabtalk.protocol import wire

CONNECT_TIMEOUT = 5.0  # seconds
RECEIVE_SIZE = 65536


def resolve_home(home: Path | None) -> Path:
    """Same result as `crabtalk.transport.default_home`, without loading that package."""
    return home or Path(os.environ.get("CRABTALK_HOME") or "~/.crabtalk").expanduser().absolute()


def connect_socket(home: Path | None) -> socket.socket | None:
    """Connect, or return None if there is no daemon or socket, or the path is too long for one.

    The caller then uses the client, which starts a daemon or explains the problem.
    """
    root = resolve_home(home)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_TIMEOUT)
        connection.connect(str(root / "run" / "crabtalk.sock"))
        connection.settimeout(None)  # a turn takes as long as it takes
    except OSError:
        connection.close()
        return None
    return connection


def stream_turn(
    connection: socket.socket, request: "wire.StreamMsg"
) -> "Generator[Event, None, None]":
    """Yield the events of the turn up to its end. Closing the generator cancels the turn."""
    from crabtalk.protocol import wire

    with connection:
        for frame in read_frames(connection, wire.ClientMessage(stream=request)):
            event = decode_event(wire.ServerMessage.FromString(bytes(frame)))
            if event is not None:
                yield event
            if isinstance(event, wire.StreamEnd):
                return


def read_frames(
    connection: socket.socket, request: "wire.ClientMessage"
) -> Iterator[bytes | bytearray]:
    """Send the request and yield reply frames. Raises ConnectionClosedError at the end."""
    from crabtalk.protocol import ConnectionClosedError, FrameDecoder, encode_frame

    decoder = FrameDecoder()
    data = encode_frame(request)
    try:
        connection.sendall(data)
        while data := connection.recv(RECEIVE_SIZE):
            yield from decoder.feed(data)
    except OSError:
        raise ConnectionClosedError("the connection to the daemon was lost") from None
    decoder.feed_eof()
    raise ConnectionClosedError("the daemon closed the connection")


def decode_event(reply: "wire.ServerMessage") -> "Event | None":
    """Return the event; None for one of a newer daemon. Raises ServerError for an error reply."""
    kind = reply.WhichOneof("msg")
    if kind == "stream":
        name = reply.stream.WhichOneof("event")
        return getattr(reply.stream, name) if name is not None else None
    from crabtalk.client import ServerError, UnexpectedReplyError

    if kind == "error":
        raise ServerError(reply.error.code, reply.error.message)
    raise UnexpectedReplyError(f"stream was answered with {kind}")
