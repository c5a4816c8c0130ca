"""AWS's binary event stream, with botocore's decoder as the oracle. The encoder lives here only."""

import struct
import tracemalloc
from binascii import crc32
from collections.abc import Iterable, Mapping
from itertools import pairwise

import pytest
from botocore.eventstream import EventStreamBuffer  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model import ApiError, ErrorKind
from crabtalk.model.bedrock.event_stream import (
    MAX_MESSAGE,
    EventStreamDecoder,
    EventStreamMessage,
    HeaderValue,
)
from tests.model.fake_vendor import split_pieces

Typed = tuple[int, HeaderValue]  # the number of a type, and a value of it

FORMATS = {2: ">b", 3: ">h", 4: ">i", 5: ">q", 8: ">q"}


def encode_header(name: str, kind: int, value: HeaderValue) -> bytes:
    raw = name.encode()
    head = bytes([len(raw)]) + raw + bytes([kind])
    if kind in FORMATS:
        return head + struct.pack(FORMATS[kind], value)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return head + (value if kind == 9 else struct.pack(">H", len(value)) + value)
    return head


def encode_message(headers: Mapping[str, Typed], payload: bytes = b"") -> bytes:
    return encode_frame(
        b"".join(encode_header(name, *typed) for name, typed in headers.items()), payload
    )


def encode_frame(headers: bytes, payload: bytes) -> bytes:
    start = encode_prelude(len(headers) + len(payload) + 16, len(headers))
    return add_checksum(start + headers + payload)


def encode_prelude(length: int, headers: int) -> bytes:
    return add_checksum(struct.pack(">II", length, headers))


def add_checksum(data: bytes) -> bytes:
    return data + struct.pack(">I", crc32(data))


def decode_pieces(pieces: Iterable[bytes]) -> list[EventStreamMessage]:
    decoder = EventStreamDecoder()
    return [message for piece in pieces for message in decoder.feed(piece)]


def signed_integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def typed_values(kind: int, values: st.SearchStrategy[HeaderValue]) -> st.SearchStrategy[Typed]:
    return values.map(lambda value: (kind, value))


VALUES = st.one_of(
    st.just((0, True)),
    st.just((1, False)),
    typed_values(2, signed_integers(8)),
    typed_values(3, signed_integers(16)),
    typed_values(4, signed_integers(32)),
    typed_values(5, signed_integers(64)),
    typed_values(6, st.binary(max_size=40)),
    typed_values(7, st.text(max_size=20)),
    typed_values(8, signed_integers(64)),
    typed_values(9, st.binary(min_size=16, max_size=16)),
)
NAMES = st.text(min_size=1, max_size=20)
MESSAGES = st.tuples(st.dictionaries(NAMES, VALUES, max_size=6), st.binary(max_size=60))

ALL_TYPES: dict[str, Typed] = {
    "yes": (0, True),
    "no": (1, False),
    "byte": (2, -1),
    "short": (3, -300),
    "int": (4, 70_000),
    "long": (5, -(2**40)),
    "bytes": (6, b"\x00\xff"),
    ":event-type": (7, "über"),
    "when": (8, 1_700_000_000_000),
    "id": (9, bytes(range(16))),
}


def test_headers_of_all_ten_types_are_read() -> None:
    (message,) = decode_pieces([encode_message(ALL_TYPES, b"payload")])
    assert message.headers == {name: value for name, (_, value) in ALL_TYPES.items()}
    assert message.payload == b"payload"


@given(st.lists(MESSAGES, max_size=4))
def test_botocore_reads_the_same_from_the_same_bytes(
    messages: list[tuple[dict[str, Typed], bytes]],
) -> None:
    data = b"".join(encode_message(headers, payload) for headers, payload in messages)
    oracle = EventStreamBuffer()
    oracle.add_data(data)
    expected = [(message.headers, message.payload) for message in oracle]
    assert decode_pieces([data]) == expected
    assert len(expected) == len(messages)


@pytest.mark.req("model.stream.any_split")
@given(st.lists(MESSAGES, min_size=1, max_size=3), st.data())
def test_any_split_of_the_bytes_gives_the_same_messages(
    messages: list[tuple[dict[str, Typed], bytes]], data: st.DataObject
) -> None:
    body = b"".join(encode_message(headers, payload) for headers, payload in messages)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=12))
    edges = [0, *sorted(cuts), len(body)]
    assert decode_pieces(body[a:b] for a, b in pairwise(edges)) == decode_pieces([body])
    assert decode_pieces(split_pieces(body, 1)) == decode_pieces([body])


@given(MESSAGES, st.data())
def test_no_damaged_byte_goes_unnoticed(
    message: tuple[dict[str, Typed], bytes], data: st.DataObject
) -> None:
    body = bytearray(encode_message(*message))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ApiError) as caught:
        decode_pieces([bytes(body)])
    assert caught.value.kind is ErrorKind.PROTOCOL


def find_refusal(data: bytes) -> ErrorKind | None:
    try:
        decode_pieces([data])
    except ApiError as error:
        return error.kind
    return None


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_header_bytes_are_read_or_refused_with_a_message(
    headers: bytes, payload: bytes
) -> None:
    assert find_refusal(encode_frame(headers, payload)) in (None, ErrorKind.PROTOCOL)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"<html>log in</html>", "starts with a wrong checksum"),
        (encode_prelude(15, 0), "claims to be 15 bytes long"),
        (encode_prelude(MAX_MESSAGE + 1, 0), f"claims to be {MAX_MESSAGE + 1} bytes long"),
        (encode_prelude(2**32 - 1, 0), "claims to be 4294967295 bytes long"),
        (encode_prelude(20, 5), "claims 5 bytes of headers"),
        (encode_prelude(MAX_MESSAGE, 200_000), "claims 200000 bytes of headers"),
        (encode_message({"a": (0, True)})[:-1] + b"\x00", "has a wrong checksum"),
        (encode_frame(b"\x01a\x0a", b""), "header of the unknown type 10"),
        (encode_frame(b"\x01a\x00\x01a\x00", b""), "has the header a twice"),
        (encode_frame(b"\x05a", b""), "headers that cannot be read"),
        (encode_frame(b"\x01a", b""), "headers that cannot be read"),
        (encode_frame(b"\x01a\x07\x00\x09short", b""), "headers that cannot be read"),
        (encode_frame(b"\x01a\x05\x00", b""), "headers that cannot be read"),
        (encode_frame(b"\x01a\x09\x00", b""), "headers that cannot be read"),
        (encode_frame(b"\x01\xff\x00", b""), "headers that cannot be read"),
    ],
)
def test_anything_but_an_event_stream_is_refused_with_a_message(data: bytes, sentence: str) -> None:
    with pytest.raises(ApiError, match=sentence) as caught:
        decode_pieces([data])
    assert caught.value.kind is ErrorKind.PROTOCOL


def test_no_memory_is_allocated_for_a_claimed_length() -> None:
    decoder = EventStreamDecoder()
    tracemalloc.start()
    try:
        assert list(decoder.feed(encode_prelude(MAX_MESSAGE, 0) + b"a few bytes")) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert not decoder.is_between_messages


def test_the_decoder_knows_whether_a_message_is_complete() -> None:
    decoder = EventStreamDecoder()
    body = encode_message(ALL_TYPES, b"x")
    states = [decoder.is_between_messages]
    for piece in (body[:5], body[5:-1], body[-1:]):
        list(decoder.feed(piece))
        states.append(decoder.is_between_messages)
    assert states == [True, False, False, True]
