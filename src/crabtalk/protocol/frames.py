"""Frames: a 4-byte big-endian length, then that many bytes of one protobuf message.

Converts bytes to payloads and back. It uses no sockets and does not look into payloads.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import cast

from google.protobuf.message import Message

from . import crabtalk_pb2 as wire

HEADER_SIZE = 4
MAX_FRAME = 16 * 1024 * 1024


class FrameError(Exception):
    """The rest of the byte stream cannot be read as frames."""


class FrameTooLargeError(FrameError):
    """A frame is larger than the limit, or its header announces such a size."""

    def __init__(self, size: int, limit: int = MAX_FRAME) -> None:
        super().__init__(f"a frame of {size} bytes exceeds the limit of {limit} bytes")
        self.size = size
        self.limit = limit


class ConnectionClosedError(FrameError):
    """The stream ended inside a frame, or before an answer the peer owes."""


def encode_frame(message: Message) -> bytes:
    """Encode `message` as a frame. Raises FrameTooLargeError when it does not fit in one."""
    payload = message.SerializeToString()
    size = len(payload)
    if size > MAX_FRAME:
        raise FrameTooLargeError(size)
    return size.to_bytes(HEADER_SIZE, "big") + payload


def encode_reply(field: str, payload: Message | bytes, request_id: int | None = None) -> bytes:
    """Encode the frame of a ServerMessage with `payload` in `field`, without building the message.

    In protobuf an embedded message is its tag, its length and its own bytes, so the envelope can
    be written around the payload. Raises FrameTooLargeError when it does not fit in a frame.
    """
    body = payload if type(payload) is bytes else cast("Message", payload).SerializeToString()
    if request_id is None:
        return _encode_header(field, len(body)) + body
    # The field number of request_id is higher than those of all payloads, so it comes last.
    tail = REQUEST_ID_TAG + encode_varint(request_id)
    return _encode_header(field, len(body), len(tail)) + body + tail


@lru_cache(maxsize=4096)
def _encode_header(field: str, size: int, tail: int = 0) -> bytes:
    """Encode what precedes the payload: the frame's length, the field's tag, the payload's length.

    Cached because small events repeat the same few sizes.
    """
    number = wire.ServerMessage.DESCRIPTOR.fields_by_name[field].number
    envelope = encode_varint(number << 3 | 2) + encode_varint(size)  # 2: length and bytes follow
    total = len(envelope) + size + tail
    if total > MAX_FRAME:
        raise FrameTooLargeError(total)
    return total.to_bytes(HEADER_SIZE, "big") + envelope


def encode_varint(number: int) -> bytes:
    """Encode a protobuf varint: seven bits a byte, lowest first, bit 8 set on all but the last."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


REQUEST_ID_TAG = encode_varint(wire.ServerMessage.REQUEST_ID_FIELD_NUMBER << 3)


class FrameDecoder:
    """Turns bytes, however they were split on the way, into payloads.

    A frame that lies whole in one piece of input is sliced out of it. A frame that spans pieces is
    collected in a buffer that becomes the payload itself. The buffer grows with the bytes that
    arrive, not with the length in the header, so a peer cannot allocate memory by announcing it.
    """

    __slots__ = ("_header", "_missing_bytes", "_payload", "limit")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._header = b""  # the first bytes of an incomplete header
        self._payload: bytearray | None = None  # the frame being collected
        self._missing_bytes = 0  # bytes that frame still lacks

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for an incomplete frame."""
        return len(self._header) + (len(self._payload) if self._payload is not None else 0)

    def feed(self, data: bytes) -> Iterator[bytes | bytearray]:
        """Yield every payload that `data` completes. Exhaust the iterator before feeding again.

        Raises FrameTooLargeError at a frame that is too large, after all frames before it were
        yielded. The decoder cannot be used after that.
        """
        position = 0
        available = len(data)
        if self._payload is not None:
            position = min(self._missing_bytes, available)
            self._payload += data[:position] if position < available else data
            self._missing_bytes -= position
            if self._missing_bytes:
                return
            payload, self._payload = self._payload, None
            yield payload
        elif self._header:
            data = self._header + data
            available += len(self._header)
            self._header = b""
        while available - position >= HEADER_SIZE:
            start = position + HEADER_SIZE
            size = int.from_bytes(data[position:start], "big")
            if size > self.limit:
                raise FrameTooLargeError(size, self.limit)
            end = start + size
            if end > available:
                self._payload = bytearray(data[start:])
                self._missing_bytes = end - available
                return
            position = end
            yield data[start:end]
        self._header = data[position:]

    def feed_eof(self) -> None:
        """End the stream. Raises ConnectionClosedError when a frame is incomplete.

        A stream that ends between frames, or inside the four bytes of a header, ended cleanly.
        """
        if self._payload is not None:
            received = len(self._payload)
            raise ConnectionClosedError(
                "the stream ended inside a frame: "
                f"{received} of {received + self._missing_bytes} bytes arrived"
            )
