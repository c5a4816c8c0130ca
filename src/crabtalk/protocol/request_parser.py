"""Parses large requests in slices, and limits the fields and messages in them before parsing.

An empty field or message takes two bytes of a frame and up to a hundred bytes of memory once it
is parsed. A frame full of them would become a gigabyte, and the daemon would answer no client
while parsing it. Counting and parsing both take time, so both pause between slices.
"Parts" below are fields, those of nested messages included.
"""

from collections.abc import Generator
from typing import NamedTuple, NoReturn, cast

from google.protobuf.descriptor import Descriptor

from . import crabtalk_pb2 as wire
from .errors import BadRequestError, TooLargeError

# The entries that a memory may hold, and some for the messages around them.
MAX_MESSAGES = 100_100
# As many parts as that when each entry has two aliases, and so is eight parts. A memory may hold
# more aliases than that, but one request cannot carry them all.
MAX_PARTS = 800_100
# Of one message nested in the request's message: it is parsed in one go, which blocks the loop.
MAX_PARTS_PER_MESSAGE = 10_000
# A request is one field; a newer client may send some beside it.
MAX_REQUEST_FIELDS = 64
# A smaller frame cannot hold enough parts to matter, and parsing it is faster than counting.
LARGE_FRAME = 16 * 1024
# Parts counted or parsed before other tasks run: one millisecond, or four when varints are longer
# than they need to be.
PARTS_PER_SLICE = 5_000
VARINT, EIGHT_BYTES, LENGTH, GROUP, FOUR_BYTES = 0, 1, 2, 3, 5

# The fields of a message that hold messages, by number, each with the same table of its message.
NestedFields = dict[int, "NestedFields"]


def find_nested_fields(descriptor: Descriptor) -> NestedFields:
    return {
        field.number: find_nested_fields(field.message_type)
        for field in descriptor.fields
        if field.message_type is not None
    }


NESTED_REQUEST_FIELDS = find_nested_fields(wire.ClientMessage.DESCRIPTOR)
REQUEST_NAMES = {field.number: field.name for field in wire.ClientMessage.DESCRIPTOR.fields}


class RequestPiece(NamedTuple):
    """A byte range of whole fields: of the request's message `name`, or of the request if empty."""

    name: str
    start: int
    end: int


def parse_request_in_slices(
    payload: bytes | bytearray,
) -> Generator[None, None, wire.ClientMessage]:
    """Parse a request, pausing between slices of the work.

    Merging the pieces of a message one after the other gives the same result as parsing it whole.
    Raises TooLargeError when the request has too many parts, BadRequestError for a group (no
    request has one, and its parts cannot be counted), and DecodeError for bytes that are not a
    request.
    """
    pieces = yield from find_pieces(payload)
    request = wire.ClientMessage()
    with memoryview(payload) as view:
        for name, start, end in pieces:
            message = getattr(request, name) if name else request
            message.SetInParent()  # so that an empty message is present too
            # MergeFromString accepts a memoryview without copying it; the stubs do not say so.
            message.MergeFromString(cast("bytes", view[start:end]))
            yield
    return request


def find_pieces(data: bytes | bytearray) -> Generator[None, None, list[RequestPiece]]:
    """Count the parts and return the pieces to parse one by one.

    Unknown fields count too, because skipping them takes as long. When the data ends too soon, or
    a field reaches past the end of its message, the whole is one piece: parsing that raises
    DecodeError.
    """
    whole = [RequestPiece("", 0, len(data))]
    try:
        pieces = yield from split_into_pieces(data)
    except IndexError:  # the data ends in the middle of a field
        return whole
    return whole if pieces is None else pieces


def split_into_pieces(data: bytes | bytearray) -> Generator[None, None, list[RequestPiece] | None]:
    """Split into pieces of about one slice each; None if this is no message. Raises IndexError."""
    position, end, nested_fields = 0, len(data), NESTED_REQUEST_FIELDS
    enclosing: list[tuple[int, NestedFields]] = []  # the ends and fields of the outer messages
    parts = messages = fields = message_parts = 0
    # The next piece: its message, where it starts, and how many parts precede it.
    pieces: list[RequestPiece] = []
    name, start, parts_before = "", 0, 0
    is_whole = True
    while True:
        while position >= end:
            is_whole = is_whole and position == end
            if len(enclosing) < 2:
                pieces.append(RequestPiece(name, start, position))
                name, start, parts_before = "", position, parts
            if not enclosing:
                check_part_limit(parts, MAX_PARTS, "fields in all")
                return pieces if is_whole else None
            end, nested_fields = enclosing.pop()
        depth = len(enclosing)
        parts += 1
        if not parts % PARTS_PER_SLICE:
            check_part_limit(parts, MAX_PARTS, "fields in all")
            yield
        if depth > 1:
            message_parts += 1
            if message_parts > MAX_PARTS_PER_MESSAGE:
                raise_too_many_parts(MAX_PARTS_PER_MESSAGE, "fields in one of its messages")
        elif parts - parts_before > PARTS_PER_SLICE:
            pieces.append(RequestPiece(name, start, position))
            start, parts_before = position, parts
        if not depth:
            fields += 1
            check_part_limit(fields, MAX_REQUEST_FIELDS, "fields of its own")
        field_start = position
        tag = data[position]
        position += 1
        if tag > 127:
            tag, position = decode_varint(data, position - 1)
        kind = tag & 7
        if kind == LENGTH:
            size = data[position]
            position += 1
            if size > 127:
                size, position = decode_varint(data, position - 1)
            inner_fields = nested_fields.get(tag >> 3)
            if inner_fields is None:
                position += size
                continue
            messages += 1
            check_part_limit(messages, MAX_MESSAGES, "messages in all")
            is_whole = is_whole and position + size <= end
            enclosing.append((end, nested_fields))
            end, nested_fields = min(position + size, end), inner_fields
            if not depth:
                pieces.append(RequestPiece("", start, field_start))
                name, start, parts_before = REQUEST_NAMES[tag >> 3], position, parts
            elif depth == 1:
                message_parts = 0
        elif kind == VARINT:
            last = position + 9
            while data[position] > 127 and position < last:
                position += 1
            position += 1
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            position += 8 if kind == EIGHT_BYTES else 4
        elif kind == GROUP:
            raise BadRequestError("the request has a group in it, and none may; leave it out")
        else:
            return None  # protobuf has no such wire type


def decode_varint(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """Decode a varint; return it and the position behind it."""
    value = shift = 0
    while shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise IndexError("a varint has at most ten bytes")


def check_part_limit(count: int, limit: int, parts: str) -> None:
    """Raise TooLargeError for more parts than the limit."""
    if count > limit:
        raise_too_many_parts(limit, parts)


def raise_too_many_parts(limit: int, kind: str) -> NoReturn:
    raise TooLargeError(
        f"the request has too many parts, more than {limit} {kind}; send fewer of them"
    )
