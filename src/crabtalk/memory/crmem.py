"""CRMEM v1: encodes and decodes a memory in the format that all readers share. No file access.

Counts and lengths in a file are never trusted: reads never go beyond the data.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from .entry import EntryKind, MemoryEntry
from .errors import BadCrmemError

MAGIC = b"CRMEM\0"
VERSION = 1
HEADER = struct.Struct("<6sIH4x")
BODY = struct.Struct("<QI")
ENTRY_PREFIX = struct.Struct("<QQI")
LENGTH_FIELD = struct.Struct("<I")
FIRST_ENTRY = HEADER.size + BODY.size
KINDS = {kind.value: kind for kind in EntryKind}
# Larger ids are never assigned; a file that has them is damaged.
MAX_ID = 2**63


@dataclass(slots=True)
class CrmemContents:
    """The contents of a file. `faults` describe what could not be read; the rest could."""

    entries: list[MemoryEntry] = field(default_factory=list)
    next_id: int = 1
    faults: list[str] = field(default_factory=list)


def encode_memory(entries: Iterable[MemoryEntry], next_id: int) -> bytes:
    """Encode a memory file. Entries are sorted by id."""
    ordered = sorted(entries, key=lambda entry: entry.id)
    # One bytearray rather than a list of pieces: freeing a million pieces takes 40 ms.
    data = bytearray(HEADER.pack(MAGIC, VERSION, 0) + BODY.pack(next_id, len(ordered)))
    for entry in ordered:
        data += encode_entry(entry)
    return bytes(data)


def encode_entry(entry: MemoryEntry) -> bytes:
    data = bytearray(ENTRY_PREFIX.pack(entry.id, entry.created_at, entry.kind))
    data += encode_text(entry.name)
    data += encode_text(entry.content)
    data += LENGTH_FIELD.pack(len(entry.aliases))
    for alias in entry.aliases:
        data += encode_text(alias)
    return bytes(data)


def encode_text(value: str) -> bytes:
    data = value.encode()
    return LENGTH_FIELD.pack(len(data)) + data


def decode_memory(data: bytes) -> CrmemContents:
    """Decode strictly: raises BadCrmemError for any fault. Trailing bytes are ignored."""
    contents = salvage_memory(data)
    if contents.faults:
        raise BadCrmemError(
            f"this is no whole CRMEM file: {contents.faults[0]}; opening it as a memory recovers "
            "what can be read"
        )
    return contents


def salvage_memory(data: bytes) -> CrmemContents:
    """Decode what can be read.

    Entries before a fault can always be read, and those after it if the fault is within an entry.
    """
    faults = check_header(data)
    contents = read_body(data)
    if faults and contents.faults:
        # The layout is unknown, so entries that seem readable are a guess.
        return CrmemContents(faults=faults)
    contents.faults = faults + contents.faults
    return contents


def check_header(data: bytes) -> list[str]:
    if len(data) < FIRST_ENTRY:
        return [f"it has {len(data)} bytes, the header alone has {FIRST_ENTRY}"]
    magic, version, flags = HEADER.unpack_from(data)
    if magic != MAGIC:
        return ["it does not begin with CRMEM"]
    if version != VERSION:
        return [f"its version is {version}, not {VERSION}"]
    return [f"its flags are {flags:#x}, not 0"] if flags else []


def read_body(data: bytes) -> CrmemContents:
    contents = CrmemContents()
    if len(data) < FIRST_ENTRY:
        contents.faults.append("it ends within its header")
        return contents
    contents.next_id, count = BODY.unpack_from(data, HEADER.size)
    position = FIRST_ENTRY
    for number in range(count):
        try:
            position = read_entry(data, position, contents)
        except TruncatedEntryError:
            contents.faults.append(f"it ends within entry {number + 1} of {count}")
            break
    else:
        read_uncounted(data, position, contents)
    renumber_duplicates(contents)
    return contents


def renumber_duplicates(contents: CrmemContents) -> None:
    """Give the later of two entries with the same id a fresh one, and those above the limit."""
    taken: set[int] = set()
    duplicates: list[int] = []
    for position, entry in enumerate(contents.entries):
        if entry.id in taken or entry.id >= MAX_ID - 1:
            duplicates.append(position)
        else:
            taken.add(entry.id)
    highest = max(taken, default=0)
    if not highest < contents.next_id < MAX_ID:
        contents.next_id = highest + 1
    for position in duplicates:
        entry = contents.entries[position]
        contents.faults.append(f"the id {entry.id} is no longer free")
        contents.entries[position] = replace(entry, id=contents.next_id)
        contents.next_id += 1


def read_uncounted(data: bytes, position: int, contents: CrmemContents) -> None:
    """Read entries beyond the count.

    Trailing bytes are ignored, unless they are entries up to the last byte: then the count is
    wrong.
    """
    more = CrmemContents()
    try:
        while position < len(data):
            position = read_entry(data, position, more)
    except TruncatedEntryError:
        return
    if more.entries and not more.faults:
        contents.entries += more.entries
        contents.faults.append(f"{len(more.entries)} entries were not counted")


class TruncatedEntryError(Exception):
    """The data ends before the entry does."""


def read_entry(data: bytes, position: int, contents: CrmemContents) -> int:
    """Add the entry at `position`, or a fault. Returns where the next entry begins."""
    start = position
    if position + ENTRY_PREFIX.size > len(data):
        raise TruncatedEntryError
    number, created_at, kind = ENTRY_PREFIX.unpack_from(data, position)
    name, position = read_bytes(data, position + ENTRY_PREFIX.size)
    content, position = read_bytes(data, position)
    count, position = read_length(data, position)
    aliases = []
    for _ in range(count):
        alias, position = read_bytes(data, position)
        aliases.append(alias)
    try:
        contents.entries.append(
            MemoryEntry(
                number,
                created_at,
                KINDS[kind],
                name.decode(),
                content.decode(),
                tuple([alias.decode() for alias in aliases]),
            )
        )
    except KeyError:
        contents.faults.append(f"the entry at byte {start} is of the unknown kind {kind}")
    except UnicodeDecodeError:
        contents.faults.append(f"the entry at byte {start} is not UTF-8")
    return position


def read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    length, position = read_length(data, position)
    if length > len(data) - position:
        raise TruncatedEntryError
    return data[position : position + length], position + length


def read_length(data: bytes, position: int) -> tuple[int, int]:
    if position + LENGTH_FIELD.size > len(data):
        raise TruncatedEntryError
    return LENGTH_FIELD.unpack_from(data, position)[0], position + LENGTH_FIELD.size
