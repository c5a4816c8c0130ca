"""Frames: the same payloads however the bytes are split; announced lengths are never trusted."""

import struct
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from crabtalk.protocol import (
    HEADER_SIZE,
    MAX_FRAME,
    ConnectionClosedError,
    FrameDecoder,
    FrameError,
    FrameTooLargeError,
    encode_frame,
    encode_reply,
    wire,
)


def make_header(size: int) -> bytes:
    """The four bytes before a payload, encoded by the standard library."""
    return struct.pack(">I", size)


def make_frames(*payloads: bytes) -> bytes:
    return b"".join(make_header(len(payload)) + payload for payload in payloads)


def feed_all(decoder: FrameDecoder, *pieces: bytes) -> list[bytes]:
    """Everything the decoder yields for these pieces of input."""
    return [bytes(payload) for piece in pieces for payload in decoder.feed(piece)]


def feed_until_error(
    decoder: FrameDecoder, *pieces: bytes
) -> tuple[list[bytes], FrameTooLargeError | None]:
    """What the decoder yields, and what it refused after that."""
    received: list[bytes] = []
    try:
        for piece in pieces:
            received += map(bytes, decoder.feed(piece))
    except FrameTooLargeError as error:
        return received, error
    return received, None


def split_at(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` in pieces, some of them empty; a cut past its end wraps around."""
    positions = sorted(cut % (len(data) + 1) for cut in cuts)
    return [data[start:end] for start, end in pairwise([0, *positions, len(data)])]


PAYLOADS = st.lists(st.binary(max_size=300), max_size=8)
CUTS = st.lists(st.integers(0, 4096), max_size=16)


# ── Encoding ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wire.frame.layout")
@given(content=st.binary(max_size=2000))
@example(content=bytes(1 << 16))
@settings(deadline=None)
def test_a_frame_is_a_big_endian_length_that_counts_the_payload_only(content: bytes) -> None:
    message = wire.ServerMessage(extension=content)
    payload = message.SerializeToString()
    assert encode_frame(message) == len(payload).to_bytes(4, "big") + payload


@pytest.mark.req("wire.frame.layout")
def test_the_header_has_four_bytes_and_an_empty_message_is_a_header_alone() -> None:
    assert HEADER_SIZE == 4
    assert encode_frame(wire.ClientMessage()) == bytes(4)


@pytest.mark.req("wire.frame.max")
def test_a_message_of_exactly_16_mib_is_encoded_and_one_byte_more_is_not() -> None:
    assert MAX_FRAME == 16 * 1024 * 1024
    envelope = 2 + 4  # the tag of field 100, and the length of the bytes in it
    frame = encode_frame(wire.ClientMessage(extension=bytes(MAX_FRAME - envelope)))
    assert frame[:4] == make_header(MAX_FRAME)
    assert len(frame) == 4 + MAX_FRAME
    with pytest.raises(FrameTooLargeError, match=r"16777217 bytes.*limit of 16777216") as caught:
        encode_frame(wire.ClientMessage(extension=bytes(MAX_FRAME - envelope + 1)))
    assert caught.value.size == MAX_FRAME + 1
    assert caught.value.limit == MAX_FRAME


@given(payloads=PAYLOADS, cuts=CUTS)
@settings(deadline=None)
def test_encoded_messages_are_decoded_unchanged(payloads: list[bytes], cuts: list[int]) -> None:
    messages = [wire.ClientMessage(extension=payload) for payload in payloads]
    stream = b"".join(encode_frame(message) for message in messages)
    received = feed_all(FrameDecoder(), *split_at(stream, cuts))
    assert [wire.ClientMessage.FromString(payload) for payload in received] == messages


# ── Decoding split input ────────────────────────────────────────────────────────────────────


@pytest.mark.req("wire.frame.incremental")
@given(payloads=PAYLOADS, cuts=CUTS)
@example(payloads=[b"first", bytes(1 << 16), b"", b"last"], cuts=[2, 11, 4000])
@settings(deadline=None)
def test_any_split_yields_the_same_payloads_in_order(
    payloads: list[bytes], cuts: list[int]
) -> None:
    decoder = FrameDecoder()
    assert feed_all(decoder, *split_at(make_frames(*payloads), cuts)) == payloads
    assert decoder.buffered_bytes == 0
    decoder.feed_eof()


@pytest.mark.req("wire.frame.incremental")
@given(payloads=PAYLOADS)
@settings(deadline=None)
def test_a_byte_at_a_time_yields_each_payload_with_its_last_byte(payloads: list[bytes]) -> None:
    decoder = FrameDecoder()
    stream = make_frames(*payloads)
    received = [
        (at, frame) for at in range(len(stream)) for frame in feed_all(decoder, stream[at:][:1])
    ]
    ends = [len(make_frames(*payloads[: n + 1])) for n in range(len(payloads))]
    assert received == [(end - 1, payload) for end, payload in zip(ends, payloads, strict=True)]


@pytest.mark.req("wire.frame.incremental")
def test_many_frames_in_one_piece_are_all_yielded() -> None:
    payloads = [str(n).encode() for n in range(10_000)]
    decoder = FrameDecoder()
    assert feed_all(decoder, make_frames(*payloads)) == payloads
    assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("size", [1, 3, 4, 5, 8])
def test_empty_payloads_are_frames_too(size: int) -> None:
    stream = make_frames(b"", b"", b"x", b"")
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert feed_all(FrameDecoder(), *pieces) == [b"", b"", b"x", b""]


def test_payloads_keep_their_content_when_decoding_goes_on() -> None:
    """Ownership of a payload passes on: the decoder may not write into it again."""
    decoder = FrameDecoder()
    stream = make_frames(b"one", b"two", b"three")
    payloads = [frame for at in range(len(stream)) for frame in decoder.feed(stream[at : at + 1])]
    assert payloads == [b"one", b"two", b"three"]


@given(payload=st.binary(max_size=50), arrived=st.integers(0, 53))
def test_buffered_counts_the_bytes_held_for_an_incomplete_frame(
    payload: bytes, arrived: int
) -> None:
    decoder = FrameDecoder()
    tail = make_frames(payload)[:-1][:arrived]
    feed_all(decoder, make_frames(b"before") + tail)
    assert decoder.buffered_bytes == (len(tail) if len(tail) < 4 else len(tail) - 4)


# ── The limit ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wire.frame.max")
def test_a_frame_of_exactly_16_mib_is_accepted() -> None:
    half = bytes(MAX_FRAME // 2)
    decoder = FrameDecoder()
    (payload,) = feed_all(decoder, make_header(MAX_FRAME) + half, half)
    assert payload == bytes(MAX_FRAME)


@pytest.mark.req("wire.frame.max")
def test_a_header_over_16_mib_is_refused_before_its_payload_arrives() -> None:
    with pytest.raises(FrameTooLargeError, match=r"16777217 bytes.*limit of 16777216") as caught:
        feed_all(FrameDecoder(), make_header(MAX_FRAME + 1))
    assert isinstance(caught.value, FrameError)
    assert (caught.value.size, caught.value.limit) == (MAX_FRAME + 1, MAX_FRAME)


@pytest.mark.req("wire.frame.max")
@given(
    payloads=st.lists(st.binary(max_size=64), max_size=5),
    excess=st.integers(1, 0xFFFF_FFFF - 64),
    cuts=CUTS,
    rest=st.binary(max_size=100),
)
def test_frames_before_one_that_is_too_large_are_yielded_first(
    payloads: list[bytes], excess: int, cuts: list[int], rest: bytes
) -> None:
    stream = make_frames(*payloads, bytes(64)) + make_header(64 + excess) + rest
    received, refused = feed_until_error(FrameDecoder(limit=64), *split_at(stream, cuts))
    assert received == [*payloads, bytes(64)]
    assert refused is not None
    assert (refused.size, refused.limit) == (64 + excess, 64)


def test_raising_the_limit_between_two_pieces_lets_larger_frames_in() -> None:
    decoder = FrameDecoder(limit=5)
    assert feed_all(decoder, make_frames(b"hello")) == [b"hello"]
    decoder.limit = MAX_FRAME
    assert feed_all(decoder, make_frames(bytes(5000))) == [bytes(5000)]


def test_raising_the_limit_between_two_payloads_applies_within_the_same_piece() -> None:
    decoder = FrameDecoder(limit=5)
    received = []
    for payload in decoder.feed(make_frames(b"hello", bytes(5000), b"bye")):
        received.append(bytes(payload))
        decoder.limit = MAX_FRAME
    assert received == [b"hello", bytes(5000), b"bye"]


def test_a_header_that_announces_16_mib_costs_only_what_arrived() -> None:
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        assert feed_all(decoder, make_header(MAX_FRAME) + b"few") == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert decoder.buffered_bytes == 3
    assert peak < 64 * 1024


# ── The end of the stream ───────────────────────────────────────────────────────────────────


@pytest.mark.req("wire.eof.clean")
@given(payloads=PAYLOADS, in_header=st.integers(0, 3))
def test_a_stream_may_end_between_frames_or_in_a_header(
    payloads: list[bytes], in_header: int
) -> None:
    decoder = FrameDecoder()
    assert feed_all(decoder, make_frames(*payloads) + make_header(7)[:in_header]) == payloads
    decoder.feed_eof()
    assert decoder.buffered_bytes == in_header


@given(size=st.integers(1, MAX_FRAME), arrived=st.binary(max_size=200), cuts=CUTS)
@example(size=1, arrived=b"", cuts=[])
@example(size=MAX_FRAME, arrived=b"all but most", cuts=[5])
def test_the_error_for_a_stream_that_ends_in_a_payload_says_how_much_arrived(
    size: int, arrived: bytes, cuts: list[int]
) -> None:
    arrived = arrived[: size - 1]
    decoder = FrameDecoder()
    assert feed_all(
        decoder, *split_at(make_frames(b"before") + make_header(size) + arrived, cuts)
    ) == [b"before"]
    with pytest.raises(ConnectionClosedError) as caught:
        decoder.feed_eof()
    assert isinstance(caught.value, FrameError)
    assert f": {len(arrived)} of {size} bytes" in str(caught.value)


# ── The decoder against a simple model ──────────────────────────────────────────────────────


class DecoderMachine(RuleBasedStateMachine):
    """Writes frames, delivers the bytes in pieces and raises the limit, in any order.

    The model keeps every byte of an incomplete frame and decodes it from the start each time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.connect()

    def connect(self) -> None:
        self.limit = 16
        self.decoder = FrameDecoder(self.limit)
        self.undelivered = b""  # written, not yet delivered
        self.incomplete = b""  # delivered bytes of an incomplete frame
        self.is_refused = False

    @rule(payload=st.binary(max_size=48) | st.integers(15, 18).map(bytes))
    def write(self, payload: bytes) -> None:
        self.undelivered += make_frames(payload)

    @rule(limit=st.integers(1, 40))
    def raise_limit(self, limit: int) -> None:
        self.limit = self.decoder.limit = max(self.limit, limit)

    @precondition(lambda self: not self.is_refused)
    @rule(count=st.integers(0, 5) | st.integers(0, 120))
    def deliver(self, count: int) -> None:
        piece, self.undelivered = self.undelivered[:count], self.undelivered[count:]
        self.incomplete += piece
        received, refused = feed_until_error(self.decoder, piece)
        assert (received, refused.size if refused else None) == self.decode_expected()
        self.is_refused = refused is not None

    @precondition(lambda self: self.is_refused)
    @rule()
    def reconnect(self) -> None:
        self.connect()

    @precondition(lambda self: not self.is_refused)
    @invariant()
    def holds_what_is_incomplete(self) -> None:
        in_payload = len(self.incomplete) >= 4
        assert self.decoder.buffered_bytes == len(self.incomplete) - (4 if in_payload else 0)
        try:
            self.decoder.feed_eof()
        except ConnectionClosedError:
            assert in_payload
        else:
            assert not in_payload

    def decode_expected(self) -> tuple[list[bytes], int | None]:
        payloads: list[bytes] = []
        while len(self.incomplete) >= 4:
            (size,) = struct.unpack_from(">I", self.incomplete)
            if size > self.limit:
                return payloads, size
            if len(self.incomplete) < 4 + size:
                break
            payloads.append(self.incomplete[4 : 4 + size])
            self.incomplete = self.incomplete[4 + size :]
        return payloads, None


TestDecoderMachine = DecoderMachine.TestCase
TestDecoderMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# ── Replies written without their envelope ──────────────────────────────────────────────────

FIELDS = {f.name: f for f in wire.ServerMessage.DESCRIPTOR.oneofs_by_name["msg"].fields}
each_field = pytest.mark.parametrize("field", FIELDS)


def make_field_strategy(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Any value of `field`, in the form that a message's constructor takes."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        # At most one entry: protobuf does not define an order of several.
        return st.dictionaries(st.text(), st.text(), max_size=1)
    if field.message_type is not None:
        values = make_message_strategy(field.message_type)
    elif field.enum_type is not None:
        values = st.sampled_from([value.number for value in field.enum_type.values])
    else:
        values = SCALARS[field.type]
    return st.lists(values, max_size=3) if field.is_repeated else values


def make_message_strategy(descriptor: Descriptor) -> st.SearchStrategy[Message]:
    kind = GetMessageClass(descriptor)
    fields = {field.name: make_field_strategy(field) for field in descriptor.fields}
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: kind(**values))


SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=300),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_STRING: st.text(),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
}


def make_sized_payload(field: str, size: int) -> Any:
    """A payload for `field` of exactly `size` bytes.

    Messages are filled with a field 15, which no message has: pairs of tag and number, two bytes
    each, and one of three bytes if needed.
    """
    descriptor = FIELDS[field].message_type
    if descriptor is None:
        return b"x" * size
    odd = b"\x78\x80\x01" if size % 2 else b""
    filled = GetMessageClass(descriptor).FromString(odd + b"\x78\x01" * ((size - len(odd)) // 2))
    assert filled.ByteSize() == size
    return filled


def wrap_reply(field: str, payload: Any) -> wire.ServerMessage:
    return wire.ServerMessage(**{field: payload})


@each_field
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_reply_equals_the_frame_of_its_message(field: str, data: st.DataObject) -> None:
    payload = data.draw(make_field_strategy(FIELDS[field]))
    assert encode_reply(field, payload) == encode_frame(wrap_reply(field, payload))


@each_field
@pytest.mark.parametrize("size", [0, 127, 128, 16383, 16384, 2**21 - 1, 2**21])
def test_a_reply_is_right_around_each_length_of_a_varint(field: str, size: int) -> None:
    payload = make_sized_payload(field, size)
    assert encode_reply(field, payload) == encode_frame(wrap_reply(field, payload))


def test_an_extension_of_any_small_size_is_right() -> None:
    for size in range(300):
        payload = bytes(size)
        assert encode_reply("extension", payload) == encode_frame(wrap_reply("extension", payload))


@each_field
def test_an_empty_payload_is_still_present_in_its_reply(field: str) -> None:
    frame = encode_reply(field, make_sized_payload(field, 0))
    assert wire.ServerMessage.FromString(frame[4:]).WhichOneof("msg") == field


def test_a_reply_with_a_large_map_has_the_same_content_in_some_order() -> None:
    payload = wire.McpInfo(name="m", env={str(n): "x" * n for n in range(50)})
    frame = encode_reply("mcp_info", payload)
    assert len(frame) == len(encode_frame(wrap_reply("mcp_info", payload)))
    assert wire.ServerMessage.FromString(frame[4:]) == wrap_reply("mcp_info", payload)


@pytest.mark.req("wire.frame.max")
@pytest.mark.parametrize(("field", "tag"), [("stream", 1), ("mcp_info", 2), ("extension", 2)])
def test_a_reply_of_exactly_16_mib_is_encoded_and_one_byte_more_is_not(
    field: str, tag: int
) -> None:
    largest = MAX_FRAME - tag - 4  # four bytes hold the payload's own length
    frame = encode_reply(field, make_sized_payload(field, largest))
    assert frame[:4] == make_header(MAX_FRAME)
    assert frame == encode_frame(wrap_reply(field, make_sized_payload(field, largest)))
    payload = make_sized_payload(field, largest + 1)
    with pytest.raises(FrameTooLargeError) as caught:
        encode_reply(field, payload)
    assert (caught.value.size, caught.value.limit) == (MAX_FRAME + 1, MAX_FRAME)
    with pytest.raises(FrameTooLargeError) as expected:
        encode_frame(wrap_reply(field, payload))
    assert str(caught.value) == str(expected.value)


@pytest.mark.req("wire.side_by_side.request_id")
@given(st.data(), st.integers(0, 2**64 - 1))
def test_a_reply_with_a_request_id_equals_the_frame_of_its_message(
    data: st.DataObject, request_id: int
) -> None:
    field = data.draw(st.sampled_from(sorted(FIELDS)))
    payload = data.draw(make_field_strategy(FIELDS[field]))
    message = wire.ServerMessage(**{field: payload}, request_id=request_id)
    assert encode_reply(field, payload, request_id) == encode_frame(message)
