"""Decodes AWS's binary event stream (application/vnd.amazon.eventstream).

A message has its length, the length of its headers, a checksum of those two, the headers, the
payload, and a checksum of everything before it. All numbers are big-endian.
"""

import struct
from binascii import crc32
from collections.abc import Iterator
from typing import NamedTuple

from crabtalk.model.errors import ApiError, ErrorKind

# Messages of models are much shorter.
MAX_MESSAGE = 16 * 1024 * 1024
MAX_HEADERS = 128 * 1024

PRELUDE = struct.Struct(">III")  # length, length of the headers, checksum of both
CHECKSUM = struct.Struct(">I")
MIN_MESSAGE = PRELUDE.size + CHECKSUM.size

# Header types of fixed size. Dates are milliseconds since 1970.
BOOLEAN_TYPES = {0: True, 1: False}
NUMBER_TYPES = {
    2: struct.Struct(">b"),
    3: struct.Struct(">h"),
    4: struct.Struct(">i"),
    5: struct.Struct(">q"),
    8: struct.Struct(">q"),
}
BYTES, STRING, UUID = 6, 7, 9
LENGTH = struct.Struct(">H")

HeaderValue = bool | int | bytes | str


class EventStreamMessage(NamedTuple):
    headers: dict[str, HeaderValue]
    payload: bytes


class EventStreamDecoder:
    """Buffers only bytes that have arrived, and never allocates by a message's claimed length."""

    __slots__ = ("_buffer", "_length")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._length = 0  # of the message at the start of the buffer; 0 before its prelude is read

    @property
    def is_between_messages(self) -> bool:
        return not self._buffer

    def feed(self, data: bytes) -> Iterator[EventStreamMessage]:
        """Yield the messages that `data` completes. Exhaust it before feeding again."""
        buffer = self._buffer
        buffer += data
        while True:
            if not self._length:
                if len(buffer) < PRELUDE.size:
                    return
                self._length = read_length(buffer)
            if len(buffer) < self._length:
                return
            message = bytes(buffer[: self._length])
            del buffer[: self._length]
            self._length = 0
            yield read_message(message)


def read_length(buffer: bytearray) -> int:
    length, headers, checksum = PRELUDE.unpack_from(buffer)
    if crc32(buffer[: PRELUDE.size - CHECKSUM.size]) != checksum:
        raise build_stream_error("a message starts with a wrong checksum")
    if not MIN_MESSAGE <= length <= MAX_MESSAGE:
        raise build_stream_error(f"a message claims to be {length} bytes long")
    if headers > min(length - MIN_MESSAGE, MAX_HEADERS):
        raise build_stream_error(f"a message claims {headers} bytes of headers")
    return int(length)


def read_message(message: bytes) -> EventStreamMessage:
    body, (checksum,) = message[: -CHECKSUM.size], CHECKSUM.unpack(message[-CHECKSUM.size :])
    if crc32(body) != checksum:
        raise build_stream_error("a message has a wrong checksum")
    end = PRELUDE.size + PRELUDE.unpack_from(body)[1]
    try:
        headers = read_headers(body[PRELUDE.size : end])
    except (struct.error, IndexError, UnicodeDecodeError):
        raise build_stream_error("a message has headers that cannot be read") from None
    return EventStreamMessage(headers, body[end:])


def read_headers(data: bytes) -> dict[str, HeaderValue]:
    headers: dict[str, HeaderValue] = {}
    at = 0
    while at < len(data):
        raw, at = take_bytes(data, at + 1, data[at])
        name = raw.decode()
        if name in headers:
            raise build_stream_error(f"a message has the header {name} twice")
        headers[name], at = read_value(data, at + 1, data[at])
    return headers


def read_value(data: bytes, at: int, kind: int) -> tuple[HeaderValue, int]:
    """Return the value that starts at `at`, and its end."""
    if kind in BOOLEAN_TYPES:
        return BOOLEAN_TYPES[kind], at
    if kind in NUMBER_TYPES:
        return NUMBER_TYPES[kind].unpack_from(data, at)[0], at + NUMBER_TYPES[kind].size
    if kind == UUID:
        return take_bytes(data, at, 16)
    if kind not in (BYTES, STRING):
        raise build_stream_error(f"a message has a header of the unknown type {kind}")
    value, at = take_bytes(data, at + LENGTH.size, LENGTH.unpack_from(data, at)[0])
    return (value.decode() if kind == STRING else value), at


def take_bytes(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    end = at + length
    if end > len(data):
        raise IndexError
    return data[at:end], end


def build_stream_error(reason: str) -> ApiError:
    return ApiError(ErrorKind.PROTOCOL, f"the answer is not an AWS event stream: {reason}")
