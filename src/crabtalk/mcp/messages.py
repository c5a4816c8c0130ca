"""The messages between the daemon and the MCP host process, and their framing.

A frame is a 32-bit big-endian length and that many bytes of MessagePack. Numbers of peers and calls
are never reused, so that late messages are recognised.
"""

import asyncio
import struct
from typing import TypeVar

import msgspec

# The limit for one message of a server (see host), plus room for the envelope.
LARGEST_FRAME = 24 * 1024 * 1024
HEADER = struct.Struct(">I")


class McpTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool as its server describes it. The hints are claims of the server, not facts."""

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
    """Start a server or connect to one, and keep it. `tokens` is a file for OAuth tokens."""

    peer: int
    timeout: float
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    auth: str = ""
    tokens: str = ""


class ClosePeer(msgspec.Struct, frozen=True, tag=True):
    """Close a peer. No messages about it follow, except the results of its calls."""

    peer: int


class CallTool(msgspec.Struct, frozen=True, tag=True):
    """Call a tool. `timeout` is for the answer, and restarts with each progress message."""

    call: int
    peer: int
    tool: str
    arguments: bytes  # a JSON object
    timeout: float


class CancelCall(msgspec.Struct, frozen=True, tag=True):
    """Cancel a call whose result is no longer needed."""

    call: int


# ── From the host ──────────────────────────────────────────────────────────────────────────────


class ServerSpawned(msgspec.Struct, frozen=True, tag=True):
    """A server's process has started; it leads its own process group. `pid` 0: that is gone."""

    peer: int
    pid: int


class AuthorizationNeeded(msgspec.Struct, frozen=True, tag=True):
    """A person must open `url` before the peer can connect."""

    peer: int
    url: str


class PeerTools(msgspec.Struct, frozen=True, tag=True):
    """The peer is connected, and these are its current tools."""

    peer: int
    tools: tuple[McpTool, ...]


class PeerLost(msgspec.Struct, frozen=True, tag=True):
    """The peer could not be connected, or was lost. `is_final`: a retry would fail as well."""

    peer: int
    error: str
    is_final: bool = False


class McpProgress(msgspec.Struct, frozen=True, tag=True):
    """The progress of a call. `text` is the server's message on one line; it may be empty."""

    call: int
    text: str
    progress: float | None = None  # finite, not negative
    total: float | None = None  # finite, above zero, not below `progress`


class McpImage(msgspec.Struct, frozen=True):
    media_type: str
    data: bytes


class McpCallResult(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The result of a tool call."""

    call: int
    text: str
    pictures: tuple[McpImage, ...] = ()
    is_error: bool = False


class McpCallFailure(msgspec.Struct, frozen=True, tag=True):
    """A call failed. `is_unheard`: the server never received it, so it can safely be repeated."""

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
    """A frame is too large or cannot be decoded."""


def encode_frame(message: ToHost | FromHost) -> bytes:
    """Raises HostFrameError if the message is too large."""
    data = msgspec.msgpack.encode(message)
    if len(data) > LARGEST_FRAME:
        raise HostFrameError(f"a frame of {len(data)} bytes; at most {LARGEST_FRAME} fit")
    return HEADER.pack(len(data)) + data


async def read_frame(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """Return the next message, or None at the end of the stream. Raises HostFrameError."""
    try:
        (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
        if length > LARGEST_FRAME:
            raise HostFrameError(f"a frame of {length} bytes was announced")
        return decoder.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except msgspec.MsgspecError as error:
        raise HostFrameError(str(error)) from None
