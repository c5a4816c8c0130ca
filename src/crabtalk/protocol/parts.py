"""Parts: the fields and messages within a request, counted before any of them is made.

One that is empty takes two bytes of a frame, and a hundred of memory. A frame of nothing else would
be a gigabyte, and nobody would be answered while it is made. Whether a request is right is not
known here.
"""

from google.protobuf.descriptor import Descriptor

from . import crabtalk_pb2 as wire

# As many as the largest request that makes sense has: all a memory may hold.
MOST_PARTS = 100_100
# A request is one field; a later client may send some beside it.
MOST_FIELDS = 64
# What is smaller cannot hold enough of them to matter, and is read sooner than counted.
LARGE = 1024 * 1024
VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5

# The fields of a message that hold messages, by number, and the same of those. A message without
# any is not looked into.
Places = dict[int, "Places"]


def places_of(descriptor: Descriptor) -> Places:
    return {
        field.number: places_of(field.message_type)
        for field in descriptor.fields
        if field.message_type is not None
    }


REQUEST = places_of(wire.ClientMessage.DESCRIPTOR)


def has_too_many_parts(payload: bytes | bytearray) -> bool:
    """Of what is no message nothing is said: whoever reads it will notice."""
    if len(payload) <= LARGE:
        return False
    try:
        return left_over(payload, 0, len(payload), REQUEST, MOST_FIELDS) < 0
    except IndexError:  # it ends where it should go on
        return False


def left_over(data: bytes | bytearray, at: int, end: int, places: Places, left: int) -> int:
    """How many more fields a message may have; below zero when it, or one in it, has too many.
    What nobody knows counts as well: to pass over it takes as long."""
    while at < end and left >= 0:
        left -= 1
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = number(data, at - 1)
        kind = tag & 7
        if kind == LENGTH:
            size = data[at]
            at += 1
            if size > 127:
                size, at = number(data, at - 1)
            inner = places.get(tag >> 3)
            if inner and left_over(data, at, min(at + size, end), inner, MOST_PARTS) < 0:
                return -1
            at += size
        elif kind == VARINT:
            _, at = number(data, at)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            at += 8 if kind == EIGHT_BYTES else 4
        else:
            return -1  # a group, which no request has, and in which anything can be
    return left


def number(data: bytes | bytearray, at: int) -> tuple[int, int]:
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
