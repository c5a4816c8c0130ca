"""What goes over the pipe between the daemon and the host of its peers, and how it is framed.

A frame is a 32-bit big-endian length and that many bytes of MessagePack. Peers and calls have
numbers that are never used twice, so that what arrives late is recognised as such.
"""

import asyncio
import struct
from typing import TypeVar

import msgspec

# Above what a server may send in one message (host side) by what the envelope adds.
LARGEST_FRAME = 24 * 1024 * 1024
HEADER = struct.Struct(">I")


class McpTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool as its server describes it. The hints are claims of the server's, no more."""

    name: str
    description: str = ""
    parameters: dict[str, object] = {}
    title: str = ""
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


# ── To the host ────────────────────────────────────────────────────────────────────────────────


class OpenPeer(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Start a server, or connect to one, and keep it. `tokens` is a file for what OAuth grants."""

    peer: int
    timeout: float
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    auth: str = ""
    tokens: str = ""


class ClosePeer(msgspec.Struct, frozen=True, tag=True):
    """Let go of a peer; nothing is heard of it afterwards."""

    peer: int


class CallTool(msgspec.Struct, frozen=True, tag=True):
    """Call a tool. `timeout` is for the answer, and begins anew with each word about progress."""

    call: int
    peer: int
    tool: str
    arguments: bytes  # a JSON object
    timeout: float


class CancelCall(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for a call any more."""

    call: int


# ── From the host ──────────────────────────────────────────────────────────────────────────────


class ServerSpawned(msgspec.Struct, frozen=True, tag=True):
    """A server's process, which leads a group of its own; `pid` 0 when all of that is gone."""

    peer: int
    pid: int


class AuthorizationNeeded(msgspec.Struct, frozen=True, tag=True):
    """A person must open `url` before the peer can go on."""

    peer: int
    url: str


class PeerTools(msgspec.Struct, frozen=True, tag=True):
    """The peer is connected, and these are its tools now."""

    peer: int
    tools: tuple[McpTool, ...]


class PeerLost(msgspec.Struct, frozen=True, tag=True):
    """The peer could not be connected, or is no more. `is_final`: trying again does not help."""

    peer: int
    error: str
    is_final: bool = False


class McpProgress(msgspec.Struct, frozen=True, tag=True):
    """A call is being carried out. `text` is what its server says about that, on one line; it is
    empty when there is nothing in it for anybody."""

    call: int
    text: str
    progress: float | None = None  # finite, not negative
    total: float | None = None  # finite, above zero, not below `progress`


class McpImage(msgspec.Struct, frozen=True):
    media_type: str
    data: bytes


class McpCallResult(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """What a tool answered."""

    call: int
    text: str
    pictures: tuple[McpImage, ...] = ()
    is_error: bool = False


class McpCallFailure(msgspec.Struct, frozen=True, tag=True):
    """A call came to nothing. `is_unheard`: the server never saw it, so it may be made again."""

    call: int
    error: str
    is_unheard: bool = False


ToHost = OpenPeer | ClosePeer | CallTool | CancelCall
FromHost = (
    ServerSpawned
    | AuthorizationNeeded
    | PeerTools
    | PeerLost
    | McpProgress
    | McpCallResult
    | McpCallFailure
)
T = TypeVar("T")


class HostFrameError(Exception):
    """The other side does not keep to the frames."""


def encode_frame(message: ToHost | FromHost) -> bytes:
    """Raises FrameError for what is too large to be sent."""
    data = msgspec.msgpack.encode(message)
    if len(data) > LARGEST_FRAME:
        raise HostFrameError(f"a frame of {len(data)} bytes; at most {LARGEST_FRAME} fit")
    return HEADER.pack(len(data)) + data


async def read_frame(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """The next message; None at the end. Raises FrameError for anything else."""
    try:
        (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
        if length > LARGEST_FRAME:
            raise HostFrameError(f"a frame of {length} bytes was announced")
        return decoder.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except msgspec.MsgspecError as error:
        raise HostFrameError(str(error)) from None
