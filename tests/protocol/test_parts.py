"""Parts: what a frame has in it, counted in slices before any of it is made."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.memory import MAX_ENTRIES
from crabtalk.protocol import BadRequestError, RequestError, TooLargeError, check_parts, parts, wire


def counted(payload: bytes | bytearray) -> None:
    for _ in check_parts(payload):
        pass


def is_refused(payload: bytes | bytearray) -> bool:
    try:
        counted(payload)
    except RequestError:
        return True
    return False


def memory(*entries: wire.MemoryEntry) -> bytes:
    request = wire.ReplaceMemoryMsg(agent="crab", entries=entries)
    return wire.ClientMessage(replace_memory=request).SerializeToString()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "SLICE", 1)
    monkeypatch.setattr(parts, "MOST_PARTS", 20)
    monkeypatch.setattr(parts, "MOST_MESSAGES", 5)


@pytest.mark.usefixtures("few")
@pytest.mark.req("bounds.parts")
def test_texts_within_a_message_within_a_request_are_counted() -> None:
    # The request, its agent, the entry.
    assert not is_refused(memory(wire.MemoryEntry(aliases=[""] * 17)))
    assert is_refused(memory(wire.MemoryEntry(aliases=[""] * 18)))
    assert is_refused(memory(*[wire.MemoryEntry(aliases=[""] * 9)] * 2))


@pytest.mark.usefixtures("few")
@pytest.mark.req("bounds.parts")
def test_messages_are_counted_by_themselves() -> None:
    assert not is_refused(memory(*[wire.MemoryEntry()] * 4))
    assert is_refused(memory(*[wire.MemoryEntry()] * 5))


@pytest.mark.req("bounds.parts")
def test_as_many_as_there_may_be_are_not_one_too_many() -> None:
    most = parts.MOST_PARTS - 3  # the request, its agent, the entry
    counted(memory(wire.MemoryEntry(aliases=[""] * most)))
    with pytest.raises(TooLargeError, match=f"more than {parts.MOST_PARTS} fields in all"):
        counted(memory(wire.MemoryEntry(aliases=[""] * (most + 1))))


@pytest.mark.req("bounds.parts")
def test_there_is_a_pause_after_each_slice() -> None:
    payload = memory(*[wire.MemoryEntry(name="n", content="c")] * 50_000)
    assert sum(1 for _ in check_parts(payload)) == 150_000 // parts.SLICE


@pytest.mark.req("bounds.parts")
def test_as_many_entries_as_a_memory_may_hold_with_two_aliases_each_are_not_too_much() -> None:
    entry = wire.MemoryEntry(
        number=70_000, name="n" * 20, kind="note", content="c" * 80, created_at=1_800_000_000
    )
    entry.aliases.extend(["a" * 20, "b" * 20])
    counted(memory(*[entry] * MAX_ENTRIES))


@pytest.mark.req("bounds.parts")
@pytest.mark.parametrize("around", [b"", b"\xda\x06\x02"])  # in the request, in what it asks for
def test_a_group_is_called_what_it_is(around: bytes) -> None:
    with pytest.raises(BadRequestError, match="has a group"):
        counted(around + b"\x0b\x0c")


@pytest.mark.parametrize("kind", [4, 6, 7])
def test_what_is_of_no_kind_there_is_is_left_to_whoever_reads_it(kind: int) -> None:
    payload = bytes([8 + kind, 0])
    counted(payload)
    with pytest.raises(DecodeError):
        wire.ClientMessage.FromString(payload)


@given(st.binary())
def test_any_bytes_are_counted_to_an_end(payload: bytes) -> None:
    is_refused(payload)


ENTRIES = st.builds(
    wire.MemoryEntry,
    number=st.integers(0, 2**64 - 1),
    name=st.text(),
    content=st.text(max_size=300),
    aliases=st.lists(st.text()),
    created_at=st.integers(0, 2**64 - 1),
)


@given(st.lists(ENTRIES, max_size=5))
def test_a_request_is_refused_for_nothing_else(entries: list[wire.MemoryEntry]) -> None:
    assert not is_refused(memory(*entries))
