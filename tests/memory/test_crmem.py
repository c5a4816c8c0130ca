"""CRMEM v1 byte for byte, and reading damaged or foreign files."""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from crabtalk.memory import BadCrmemError, EntryKind, MemoryEntry
from crabtalk.memory.crmem import decode_memory, encode_memory, salvage_memory
from tests.memory.memory_samples import ENTRIES, VECTOR, draw_entries

SHIP = MemoryEntry(2, 1_700_000_000, EntryKind.NOTE, "dep", "ship it", ("go",))


@pytest.mark.req("memory.crmem.layout")
def test_a_file_is_written_byte_for_byte() -> None:
    assert encode_memory([SHIP], 3) == VECTOR


@pytest.mark.req("memory.crmem.layout")
def test_a_file_is_read_byte_for_byte() -> None:
    contents = decode_memory(VECTOR)
    assert (contents.entries, contents.next_id) == ([SHIP], 3)


@pytest.mark.req("memory.crmem.layout")
@given(draw_entries())
def test_written_entries_are_read_back(entries: list[MemoryEntry]) -> None:
    contents = decode_memory(encode_memory(reversed(entries), 1000))
    assert (contents.entries, contents.next_id) == (entries, 1000)


@pytest.mark.req("memory.crmem.topics")
def test_a_topic_is_read_and_written_as_one() -> None:
    topic = replace(SHIP, kind=EntryKind.TOPIC)
    assert decode_memory(encode_memory([topic], 3)).entries == [topic]


def patch_vector(at: int, *values: int) -> bytes:
    return VECTOR[:at] + bytes(values) + VECTOR[at + len(values) :]


@pytest.mark.req("memory.crmem.refuses")
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (patch_vector(0, 0x63), "does not begin with CRMEM"),
        (patch_vector(6, 2), "its version is 2"),
        (patch_vector(10, 1), "its flags are 0x1"),
        (VECTOR[:20], "has 20 bytes"),
        (VECTOR[:-1], "ends within entry 1 of 1"),
        (patch_vector(24, 2), "ends within entry 2 of 2"),
        (patch_vector(44, 3), "unknown kind 3"),
        (patch_vector(52, 0xFF), "is not UTF-8"),
        (b"", "has 0 bytes"),
    ],
)
def test_a_reader_refuses_an_incomplete_or_invalid_file(data: bytes, why: str) -> None:
    with pytest.raises(BadCrmemError, match=why):
        decode_memory(data)


@pytest.mark.req("memory.crmem.lenient")
def test_reserved_and_trailing_bytes_are_ignored() -> None:
    assert decode_memory(patch_vector(12, 1, 2, 3, 4)).entries == [SHIP]
    assert decode_memory(VECTOR + b"more").entries == [SHIP]


@pytest.mark.req("memory.damage.recovered")
def test_entries_beyond_the_count_are_not_lost() -> None:
    contents = salvage_memory(patch_vector(24, 0))
    assert contents.entries == [SHIP]
    assert contents.faults == ["1 entries were not counted"]


@pytest.mark.req("memory.damage.recovered")
def test_an_entry_of_unknown_kind_is_lost_alone() -> None:
    data = bytearray(encode_memory(ENTRIES, 10))
    data[28 + 16] = 9
    contents = salvage_memory(bytes(data))
    assert contents.entries == list(ENTRIES[1:])
    assert contents.faults == ["the entry at byte 28 is of the unknown kind 9"]


@pytest.mark.req("memory.crmem.bounded")
@pytest.mark.parametrize("at", [24, 48, 55, 66, 70])
def test_no_count_and_no_length_allocates_more_memory_than_the_file(at: int) -> None:
    """The count and length fields: of entries, name, content, aliases and alias."""
    data = patch_vector(at, 0xFF, 0xFF, 0xFF, 0xFF)
    tracemalloc.start()
    try:
        contents = salvage_memory(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert contents.faults
    assert peak < 64 * 1024


@pytest.mark.req("memory.crmem.bounded")
def test_a_file_of_empty_aliases_takes_memory_in_proportion() -> None:
    count = 200_000
    head = VECTOR[:66]  # up to the number of aliases
    data = head + struct.pack("<I", count) + bytes(4 * count)
    tracemalloc.start()
    try:
        contents = decode_memory(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(contents.entries[0].aliases) == count
    assert peak < 8 * len(data)


@pytest.mark.req("memory.ids.monotonic")
@pytest.mark.parametrize("next_id", [0, 2, 2**64 - 1])
def test_a_wrong_next_id_is_corrected(next_id: int) -> None:
    assert decode_memory(VECTOR[:16] + struct.pack("<Q", next_id) + VECTOR[24:]).next_id == 3


@pytest.mark.req("memory.foreign.duplicates")
def test_of_two_entries_with_the_same_id_the_second_gets_another() -> None:
    other = replace(SHIP, name="other", aliases=())
    last = replace(SHIP, id=2**64 - 1, name="last", aliases=())
    contents = salvage_memory(encode_memory([SHIP, other, last], 3))
    assert [(entry.id, entry.name) for entry in contents.entries] == [
        (2, "dep"),
        (3, "other"),
        (4, "last"),
    ]
    assert contents.next_id == 5


@given(st.binary(max_size=300))
def test_any_bytes_can_be_salvaged(data: bytes) -> None:
    salvage_memory(data)
    salvage_memory(VECTOR[:28] + data)
