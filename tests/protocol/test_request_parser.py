"""Parts: what a frame has in it, counted in slices before any of it is made."""

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
    """The request, and how often others had their turn."""
    slices, pauses = parse_request_in_slices(payload), 0
    while True:
        try:
            next(slices)
        except StopIteration as done:
            return done.value, pauses
        pauses += 1


def is_refused(payload: bytes | bytearray) -> bool:
    """For what it is made of, and not because it is no request."""
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
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_parser, "PARTS_PER_SLICE", 1)
    monkeypatch.setattr(request_parser, "MAX_PARTS", 20)
    monkeypatch.setattr(request_parser, "MAX_MESSAGES", 5)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field is a piece."""
    monkeypatch.setattr(request_parser, "PARTS_PER_SLICE", 1)


@pytest.mark.usefixtures("few")
@pytest.mark.req("bounds.parts")
def test_texts_within_a_message_within_a_request_are_counted() -> None:
    # The request, its agent, the entry.
    assert not is_refused(encode_memory(wire.MemoryEntry(aliases=[""] * 17)))
    assert is_refused(encode_memory(wire.MemoryEntry(aliases=[""] * 18)))
    assert is_refused(encode_memory(*[wire.MemoryEntry(aliases=[""] * 9)] * 2))


@pytest.mark.usefixtures("few")
@pytest.mark.req("bounds.parts")
def test_messages_are_counted_by_themselves() -> None:
    assert not is_refused(encode_memory(*[wire.MemoryEntry()] * 4))
    assert is_refused(encode_memory(*[wire.MemoryEntry()] * 5))


@pytest.mark.req("bounds.parts")
def test_as_many_as_there_may_be_are_not_one_too_many() -> None:
    entry = wire.MemoryEntry(aliases=[""] * 99)  # a hundred with itself
    most = request_parser.MAX_PARTS // 100
    rest = request_parser.MAX_PARTS % 100 + 100 - 3  # the request, its agent, the entry
    read_request(encode_memory(*[entry] * (most - 1), wire.MemoryEntry(aliases=[""] * rest)))
    with pytest.raises(TooLargeError, match=f"more than {request_parser.MAX_PARTS} fields in all"):
        read_request(
            encode_memory(*[entry] * (most - 1), wire.MemoryEntry(aliases=[""] * (rest + 1)))
        )


@pytest.mark.req("bounds.parts")
def test_one_message_may_not_have_all_of_them() -> None:
    most = wire.MemoryEntry(aliases=[""] * request_parser.MAX_PARTS_PER_MESSAGE)
    read_request(encode_memory(most, most))
    most.aliases.append("")
    with pytest.raises(TooLargeError, match="more than 10000 fields in one of its messages"):
        read_request(encode_memory(most))


@pytest.mark.req("bounds.parts")
def test_there_is_a_pause_after_each_slice_that_is_counted_and_each_that_is_read() -> None:
    payload = encode_memory(*[wire.MemoryEntry(name="n", content="c")] * 50_000)
    request, pauses = read_request(payload)
    assert len(request.replace_memory.entries) == 50_000
    slices = 150_000 // request_parser.PARTS_PER_SLICE
    assert 2 * slices <= pauses <= 2 * slices + 4


@pytest.mark.req("bounds.parts")
def test_as_many_entries_as_a_memory_may_hold_with_two_aliases_each_are_not_too_much() -> None:
    entry = wire.MemoryEntry(
        number=70_000, name="n" * 20, kind="note", content="c" * 80, created_at=1_800_000_000
    )
    entry.aliases.extend(["a" * 20, "b" * 20])
    read_request(encode_memory(*[entry] * MAX_ENTRIES))


@pytest.mark.req("bounds.parts")
@pytest.mark.parametrize("around", [b"", b"\xda\x06\x02"])  # in the request, in what it asks for
def test_a_group_is_called_what_it_is(around: bytes) -> None:
    with pytest.raises(BadRequestError, match="has a group"):
        read_request(around + b"\x0b\x0c")


@pytest.mark.parametrize("kind", [4, 6, 7])
def test_what_is_of_no_kind_there_is_is_left_to_whoever_reads_it(kind: int) -> None:
    payload = bytes([8 + kind, 0])
    assert read_in_pieces(payload) is read_whole(payload) is None


@given(st.binary())
def test_any_bytes_are_what_they_are_read_as_whole(payload: bytes) -> None:
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


@pytest.mark.usefixtures("tiny")
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(REQUESTS, max_size=4), st.data())
def test_a_request_in_pieces_is_the_request_however_it_is_damaged(
    requests: list[wire.ClientMessage], data: st.DataObject
) -> None:
    """Several in one payload are one, too: of fields that exclude each other the last is meant."""
    payload = bytearray(b"".join(request.SerializeToString() for request in requests))
    assert read_in_pieces(bytes(payload)) == read_whole(bytes(payload))
    for place in data.draw(st.lists(st.integers(0, max(0, len(payload) - 1)), max_size=3)):
        payload[place : place + 1] = data.draw(st.binary(max_size=2))
    with suppress(RequestError):
        assert read_in_pieces(bytes(payload)) == read_whole(bytes(payload))


@given(st.lists(ENTRIES, max_size=5))
def test_a_request_is_refused_for_nothing_else(entries: list[wire.MemoryEntry]) -> None:
    assert not is_refused(encode_memory(*entries))
