"""Direct: a turn over the daemon's socket and nothing else, for whom an event loop costs too much.

Half of what a short command takes is loading the client. This does one request, where the daemon's
socket is where it should be; for everything else there is `options.daemon`.
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
    """What `crabtalk.transport.default_home` says, which takes loading it."""
    return home or Path(os.environ.get("CRABTALK_HOME") or "~/.crabtalk").expanduser().absolute()


def connect_socket(home: Path | None) -> socket.socket | None:
    """None where it takes a client to say why: no daemon, no socket, a path too long for one."""
    root = resolve_home(home)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(CONNECT_TIMEOUT)
        line.connect(str(root / "run" / "crabtalk.sock"))
        line.settimeout(None)  # a turn takes as long as it takes
    except OSError:
        line.close()
        return None
    return line


def stream_turn(line: socket.socket, request: "wire.StreamMsg") -> "Generator[Event, None, None]":
    """The events of the turn, up to its end. Closing it hangs up, and the turn is cancelled."""
    from crabtalk.protocol import wire

    with line:
        for frame in read_frames(line, wire.ClientMessage(stream=request)):
            event = decode_event(wire.ServerMessage.FromString(bytes(frame)))
            if event is not None:
                yield event
            if isinstance(event, wire.StreamEnd):
                return


def read_frames(line: socket.socket, request: "wire.ClientMessage") -> Iterator[bytes | bytearray]:
    """What answers it. Raises ConnectionClosedError when nothing more can come."""
    from crabtalk.protocol import ConnectionClosedError, FrameDecoder, encode_frame

    decoder = FrameDecoder()
    data = encode_frame(request)
    try:
        line.sendall(data)
        while data := line.recv(RECEIVE_SIZE):
            yield from decoder.feed(data)
    except OSError:
        raise ConnectionClosedError("the connection to the daemon was lost") from None
    decoder.feed_eof()
    raise ConnectionClosedError("the daemon closed the connection")


def decode_event(reply: "wire.ServerMessage") -> "Event | None":
    """None for an event of a newer daemon. Raises what the daemon refuses."""
    kind = reply.WhichOneof("msg")
    if kind == "stream":
        name = reply.stream.WhichOneof("event")
        return getattr(reply.stream, name) if name is not None else None
    from crabtalk.client import ServerError, UnexpectedReplyError

    if kind == "error":
        raise ServerError(reply.error.code, reply.error.message)
    raise UnexpectedReplyError(f"stream was answered with {kind}")
