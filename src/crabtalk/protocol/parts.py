"""Parts: the fields and messages within a request, counted before any of them is made.

One that is empty takes two bytes of a frame, and up to a hundred of memory. A frame of nothing else
would be a gigabyte, and nobody would be answered while it is made. Counting them takes its time as
well, and is done in slices. Whether a request is right is not known here.
"""

from collections.abc import Iterator
from typing import NoReturn

from google.protobuf.descriptor import Descriptor

from . import crabtalk_pb2 as wire
from .errors import BadRequestError, TooLargeError

# The entries that a memory may hold, and some for what is around them.
MOST_MESSAGES = 100_100
# As many when each entry has two aliases, and so is eight parts. To make them takes some 25 ms, in
# which nobody is answered: more aliases than that a memory may hold, but not be sent at once.
MOST_PARTS = 800_100
# A request is one field; a later client may send some beside it.
MOST_FIELDS = 64
# What is no larger cannot hold enough of them to matter, and is read sooner than counted.
LARGE_FRAME = 16 * 1024
# Counted before others get their turn: a millisecond, or four of numbers longer than they need be.
SLICE = 5_000
VARINT, EIGHT_BYTES, LENGTH, GROUP, FOUR_BYTES = 0, 1, 2, 3, 5

# The fields of a message that hold messages, by number, and the same of those.
Places = dict[int, "Places"]


def places_of(descriptor: Descriptor) -> Places:
    return {
        field.number: places_of(field.message_type)
        for field in descriptor.fields
        if field.message_type is not None
    }


REQUEST = places_of(wire.ClientMessage.DESCRIPTOR)


def check_parts(payload: bytes | bytearray) -> Iterator[None]:
    """Pauses between slices of the work. Raises TooLargeError when there are too many.

    A group is a BadRequestError: no request has one, and anything can be in it. Of what is no
    message nothing is said: whoever reads it will notice.
    """
    try:
        yield from count(payload)
    except IndexError:  # it ends where it should go on
        return


def count(data: bytes | bytearray) -> Iterator[None]:
    """What nobody knows counts as well: to pass over it takes as long."""
    at, end, places = 0, len(data), REQUEST
    around: list[tuple[int, Places]] = []  # where the messages end that this one is in
    parts = messages = fields = 0
    while True:
        while at >= end:
            if not around:
                if parts > MOST_PARTS:
                    refuse(MOST_PARTS, "fields in all")
                return
            end, places = around.pop()
        parts += 1
        if not parts % SLICE:
            if parts > MOST_PARTS:
                refuse(MOST_PARTS, "fields in all")
            yield
        if not around:
            fields += 1
            if fields > MOST_FIELDS:
                refuse(MOST_FIELDS, "fields of its own")
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
            if inner is None:
                at += size
                continue
            messages += 1
            if messages > MOST_MESSAGES:
                refuse(MOST_MESSAGES, "messages in all")
            if size:
                around.append((end, places))
                end, places = min(at + size, end), inner
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
            return  # there is no such kind


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


def refuse(most: int, kind: str) -> NoReturn:
    raise TooLargeError(
        f"the request has too many parts, more than {most} {kind}; send fewer of them"
    )
