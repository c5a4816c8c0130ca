"""Parts: the fields and messages within a large request, counted before any of them is made.

One that is empty takes two bytes of a frame, and up to a hundred of memory. A frame of nothing else
would be a gigabyte, and nobody would be answered while it is made. Counting them, and making those
that are not too many, takes its time as well, and is done in slices.
"""

from collections.abc import Generator
from typing import NamedTuple, NoReturn, cast

from google.protobuf.descriptor import Descriptor

from . import crabtalk_pb2 as wire
from .errors import BadRequestError, TooLargeError

# The entries that a memory may hold, and some for what is around them.
MAX_MESSAGES = 100_100
# As many when each entry has two aliases, and so is eight parts. More aliases than that a memory
# may hold, but not be sent at once.
MAX_PARTS = 800_100
# Of one message within that of the request: it is made in one go, in which nobody is answered.
MAX_PARTS_PER_MESSAGE = 10_000
# A request is one field; a later client may send some beside it.
MAX_REQUEST_FIELDS = 64
# What is no larger cannot hold enough of them to matter, and is read sooner than counted.
LARGE_FRAME = 16 * 1024
# Counted, or made, before others get their turn: a millisecond, or four of numbers longer than they
# need be.
PARTS_PER_SLICE = 5_000
VARINT, EIGHT_BYTES, LENGTH, GROUP, FOUR_BYTES = 0, 1, 2, 3, 5

# The fields of a message that hold messages, by number, and the same of those.
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
    """Whole fields of the request's message of that name, or of the request itself without one."""

    name: str
    start: int
    end: int


def parse_request_in_slices(
    payload: bytes | bytearray,
) -> Generator[None, None, wire.ClientMessage]:
    """The request; pauses between slices of the work. To read pieces of a message one after the
    other is to read the message.

    Raises TooLargeError when it has too many parts, BadRequestError for a group, since no request
    has one and anything can be in it, and DecodeError for what is no request.
    """
    pieces = yield from find_pieces(payload)
    request = wire.ClientMessage()
    with memoryview(payload) as view:
        for name, start, end in pieces:
            message = getattr(request, name) if name else request
            message.SetInParent()  # also where it is empty
            # Protobuf reads it as it reads bytes, without a copy; its stubs do not say so.
            message.MergeFromString(cast("bytes", view[start:end]))
            yield
    return request


def find_pieces(data: bytes | bytearray) -> Generator[None, None, list[RequestPiece]]:
    """What nobody knows counts as well: to pass over it takes as long.

    Where it ends too soon, or has a field that reaches out of its message, it is one piece, and
    whoever reads that will notice.
    """
    whole = [RequestPiece("", 0, len(data))]
    try:
        pieces = yield from split_into_pieces(data)
    except IndexError:  # it ends where it should go on
        return whole
    return whole if pieces is None else pieces


def split_into_pieces(data: bytes | bytearray) -> Generator[None, None, list[RequestPiece] | None]:
    """The pieces, a slice or so each; None where the bytes are no message. Raises IndexError."""
    at, end, places = 0, len(data), NESTED_REQUEST_FIELDS
    around: list[tuple[int, NestedFields]] = []  # where the messages end that this one is in
    parts = messages = fields = inside = 0
    # The next piece: of which message, from where on, and how many parts were before it.
    pieces: list[RequestPiece] = []
    name, since, before = "", 0, 0
    is_whole = True
    while True:
        while at >= end:
            is_whole = is_whole and at == end
            if len(around) < 2:
                pieces.append(RequestPiece(name, since, at))
                name, since, before = "", at, parts
            if not around:
                if parts > MAX_PARTS:
                    raise_too_many_parts(MAX_PARTS, "fields in all")
                return pieces if is_whole else None
            end, places = around.pop()
        depth = len(around)
        parts += 1
        if not parts % PARTS_PER_SLICE:
            if parts > MAX_PARTS:
                raise_too_many_parts(MAX_PARTS, "fields in all")
            yield
        if depth > 1:
            inside += 1
            if inside > MAX_PARTS_PER_MESSAGE:
                raise_too_many_parts(MAX_PARTS_PER_MESSAGE, "fields in one of its messages")
        elif parts - before > PARTS_PER_SLICE:
            pieces.append(RequestPiece(name, since, at))
            since, before = at, parts
        if not depth:
            fields += 1
            if fields > MAX_REQUEST_FIELDS:
                raise_too_many_parts(MAX_REQUEST_FIELDS, "fields of its own")
        begun = at
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = decode_varint(data, at - 1)
        kind = tag & 7
        if kind == LENGTH:
            size = data[at]
            at += 1
            if size > 127:
                size, at = decode_varint(data, at - 1)
            inner = places.get(tag >> 3)
            if inner is None:
                at += size
                continue
            messages += 1
            if messages > MAX_MESSAGES:
                raise_too_many_parts(MAX_MESSAGES, "messages in all")
            is_whole = is_whole and at + size <= end
            around.append((end, places))
            end, places = min(at + size, end), inner
            if not depth:
                pieces.append(RequestPiece("", since, begun))
                name, since, before = REQUEST_NAMES[tag >> 3], at, parts
            elif depth == 1:
                inside = 0
        elif kind == VARINT:
            last = at + 9
            while data[at] > 127 and at < last:
                at += 1
            at += 1
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            at += 8 if kind == EIGHT_BYTES else 4
        elif kind == GROUP:
            raise BadRequestError("the request has a group in it, and none may; leave it out")
        else:
            return None  # there is no such kind


def decode_varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """A varint, and where what follows it begins."""
    found = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
        shift += 7
    raise IndexError("a number of more than ten bytes is none")


def raise_too_many_parts(most: int, kind: str) -> NoReturn:
    raise TooLargeError(
        f"the request has too many parts, more than {most} {kind}; send fewer of them"
    )
