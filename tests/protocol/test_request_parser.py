"""request_parser: fields and messages of a request are counted in slices before parsing."""

from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crabtalk.memory import MAX_ENTRIES
from crabtalk.protocol import (
    BadRequestError,
    RequestError,
    TooLargeError,
    parse_request_in_slices,
    request_parser,
    wire,
)


def read_request(payload: bytes | bytearray) -> tuple[wire.ClientMessage, int]:
    """The request, and how often the parser paused."""
    slices, pauses = parse_request_in_slices(payload), 0
    while True:
        try:
            next(slices)
        except StopIteration as done:
            return done.value, pauses
        pauses += 1


def is_refused(payload: bytes | bytearray) -> bool:
    """Whether it is refused for its number of parts or a group; not for being no request."""
    try:
        read_request(payload)
    except RequestError:
        return True
    except DecodeError:
        pass
    return False


def read_whole(payload: bytes) -> wire.ClientMessage | None:
    try:
        return wire.ClientMessage.FromString(payload)
    except DecodeError:
        return None


def read_in_pieces(payload: bytes) -> wire.ClientMessage | None:
    try:
        return read_request(payload)[0]
    except DecodeError:
        return None


def encode_memory(*entries: wire.MemoryEntry) -> bytes:
    request = wire.ReplaceMemoryMsg(agent="crab", entries=entries)
    return wire.ClientMessage(replace_memory=request).SerializeToString()


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_parser, "PARTS_PER_SLICE", 1)
    monkeypatch.setattr(request_parser, "MAX_PARTS", 20)
    monkeypatch.setattr(request_parser, "MAX_MESSAGES", 5)


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every field a piece of its own."""
    monkeypatch.setattr(request_parser, "PARTS_PER_SLICE", 1)


@pytest.mark.usefixtures("low_limits")
@pytest.mark.req("bounds.parts")
def test_texts_of_a_nested_message_are_counted() -> None:
    # The other three parts are the request, its agent and the entry.
    assert not is_refused(encode_memory(wire.MemoryEntry(aliases=[""] * 17)))
    assert is_refused(encode_memory(wire.MemoryEntry(aliases=[""] * 18)))
    assert is_refused(encode_memory(*[wire.MemoryEntry(aliases=[""] * 9)] * 2))


@pytest.mark.usefixtures("low_limits")
@pytest.mark.req("bounds.parts")
def test_messages_have_a_limit_of_their_own() -> None:
    assert not is_refused(encode_memory(*[wire.MemoryEntry()] * 4))
    assert is_refused(encode_memory(*[wire.MemoryEntry()] * 5))


@pytest.mark.req("bounds.parts")
def test_exactly_as_many_parts_as_allowed_are_accepted() -> None:
    entry = wire.MemoryEntry(aliases=[""] * 99)  # a hundred parts with the entry itself
    count = request_parser.MAX_PARTS // 100
    remaining = (
        request_parser.MAX_PARTS % 100 + 100 - 3
    )  # minus the request, its agent and the entry
    read_request(encode_memory(*[entry] * (count - 1), wire.MemoryEntry(aliases=[""] * remaining)))
    with pytest.raises(TooLargeError, match=f"more than {request_parser.MAX_PARTS} fields in all"):
        read_request(
            encode_memory(*[entry] * (count - 1), wire.MemoryEntry(aliases=[""] * (remaining + 1)))
        )


@pytest.mark.req("bounds.parts")
def test_one_message_may_not_have_all_the_parts() -> None:
    largest = wire.MemoryEntry(aliases=[""] * request_parser.MAX_PARTS_PER_MESSAGE)
    read_request(encode_memory(largest, largest))
    largest.aliases.append("")
    with pytest.raises(TooLargeError, match="more than 10000 fields in one of its messages"):
        read_request(encode_memory(largest))


@pytest.mark.req("bounds.parts")
def test_parsing_pauses_after_each_slice_counted_and_each_slice_parsed() -> None:
    payload = encode_memory(*[wire.MemoryEntry(name="n", content="c")] * 50_000)
    request, pauses = read_request(payload)
    assert len(request.replace_memory.entries) == 50_000
    slices = 150_000 // request_parser.PARTS_PER_SLICE
    assert 2 * slices <= pauses <= 2 * slices + 4


@pytest.mark.req("bounds.parts")
def test_a_full_memory_with_two_aliases_per_entry_is_accepted() -> None:
    entry = wire.MemoryEntry(
        number=70_000, name="n" * 20, kind="note", content="c" * 80, created_at=1_800_000_000
    )
    entry.aliases.extend(["a" * 20, "b" * 20])
    read_request(encode_memory(*[entry] * MAX_ENTRIES))


@pytest.mark.req("bounds.parts")
@pytest.mark.parametrize("prefix", [b"", b"\xda\x06\x02"])  # in the request, in its message
def test_a_group_is_refused_as_a_group(prefix: bytes) -> None:
    with pytest.raises(BadRequestError, match="has a group"):
        read_request(prefix + b"\x0b\x0c")


@pytest.mark.parametrize("kind", [4, 6, 7])
def test_an_unknown_wire_type_is_left_to_protobuf(kind: int) -> None:
    payload = bytes([8 + kind, 0])
    assert read_in_pieces(payload) is read_whole(payload) is None


@given(st.binary())
def test_any_bytes_are_parsed_as_they_are_in_one_piece(payload: bytes) -> None:
    with suppress(RequestError):
        assert read_in_pieces(payload) == read_whole(payload)


ENTRIES = st.builds(
    wire.MemoryEntry,
    number=st.integers(0, 2**64 - 1),
    name=st.text(),
    content=st.text(max_size=300),
    aliases=st.lists(st.text()),
    created_at=st.integers(0, 2**64 - 1),
)


REQUESTS = st.one_of(
    st.builds(
        lambda entries, sender: wire.ClientMessage(
            replace_memory=wire.ReplaceMemoryMsg(agent="crab", sender=sender, entries=entries)
        ),
        st.lists(ENTRIES, max_size=5),
        st.none() | st.text(max_size=5),
    ),
    st.builds(lambda text: wire.ClientMessage(send=wire.SendMsg(content=text)), st.text()),
    st.just(wire.ClientMessage(ping=wire.Ping())),
    st.builds(lambda data: wire.ClientMessage(extension=data), st.binary()),
)


@pytest.mark.usefixtures("small_slices")
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(REQUESTS, max_size=4), st.data())
def test_a_request_in_pieces_is_parsed_as_in_one_piece_even_if_damaged(
    requests: list[wire.ClientMessage], data: st.DataObject
) -> None:
    """Several requests in one payload count as one: of the fields of a oneof the last wins."""
    payload = bytearray(b"".join(request.SerializeToString() for request in requests))
    assert read_in_pieces(bytes(payload)) == read_whole(bytes(payload))
    for position in data.draw(st.lists(st.integers(0, max(0, len(payload) - 1)), max_size=3)):
        payload[position : position + 1] = data.draw(st.binary(max_size=2))
    with suppress(RequestError):
        assert read_in_pieces(bytes(payload)) == read_whole(bytes(payload))


@given(st.lists(ENTRIES, max_size=5))
def test_a_request_is_refused_for_no_other_reason(entries: list[wire.MemoryEntry]) -> None:
    assert not is_refused(encode_memory(*entries))
