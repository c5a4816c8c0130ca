"""CRMEM v1: the bytes of a memory, as every reader of the format knows them. No files here.

A count or a length is never believed: what is read is a slice of what is there.
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
# Ids beyond are no longer given out; a file that says so is damaged.
MAX_ID = 2**63


@dataclass(slots=True)
class CrmemContents:
    """What a file holds. `faults` say what could not be read; the rest could."""

    entries: list[MemoryEntry] = field(default_factory=list)
    next_id: int = 1
    faults: list[str] = field(default_factory=list)


def encode_memory(entries: Iterable[MemoryEntry], next_id: int) -> bytes:
    """The file. Entries go in by id."""
    ordered = sorted(entries, key=lambda entry: entry.id)
    # No list of its pieces: to let go of a million of them takes the interpreter 40 ms.
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
    """Strictly: BadFormatError for anything a reader must refuse. Trailing bytes are ignored."""
    contents = salvage_memory(data)
    if contents.faults:
        raise BadCrmemError(
            f"this is no whole CRMEM file: {contents.faults[0]}; opening it as a memory recovers "
            "what can be read"
        )
    return contents


def salvage_memory(data: bytes) -> CrmemContents:
    """Whatever can be read. Entries before a fault always can, and those after it where the fault
    is within one."""
    faults = check_header(data)
    contents = read_body(data)
    if faults and contents.faults:
        # Not even the layout is known, so what seemed to be entries is a guess.
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
    at = FIRST_ENTRY
    for number in range(count):
        try:
            at = read_entry(data, at, contents)
        except TruncatedEntryError:
            contents.faults.append(f"it ends within entry {number + 1} of {count}")
            break
    else:
        read_uncounted(data, at, contents)
    renumber_duplicates(contents)
    return contents


def renumber_duplicates(contents: CrmemContents) -> None:
    """Where ids are used twice or used up, the later entry gets a fresh one."""
    taken: set[int] = set()
    homeless: list[int] = []
    for position, entry in enumerate(contents.entries):
        if entry.id in taken or entry.id >= MAX_ID - 1:
            homeless.append(position)
        else:
            taken.add(entry.id)
    highest = max(taken, default=0)
    if not highest < contents.next_id < MAX_ID:
        contents.next_id = highest + 1
    for position in homeless:
        entry = contents.entries[position]
        contents.faults.append(f"the id {entry.id} is no longer free")
        contents.entries[position] = replace(entry, id=contents.next_id)
        contents.next_id += 1


def read_uncounted(data: bytes, at: int, contents: CrmemContents) -> None:
    """Trailing bytes mean nothing, unless they are entries to the last byte: then it is the count
    that is wrong."""
    more = CrmemContents()
    try:
        while at < len(data):
            at = read_entry(data, at, more)
    except TruncatedEntryError:
        return
    if more.entries and not more.faults:
        contents.entries += more.entries
        contents.faults.append(f"{len(more.entries)} entries were not counted")


class TruncatedEntryError(Exception):
    """The bytes end before the entry does."""


def read_entry(data: bytes, at: int, contents: CrmemContents) -> int:
    """Adds the entry that begins at `at`, or why not. Returns where the next one begins."""
    begun = at
    if at + ENTRY_PREFIX.size > len(data):
        raise TruncatedEntryError
    number, created_at, kind = ENTRY_PREFIX.unpack_from(data, at)
    name, at = read_bytes(data, at + ENTRY_PREFIX.size)
    content, at = read_bytes(data, at)
    count, at = read_length(data, at)
    aliases = []
    for _ in range(count):
        alias, at = read_bytes(data, at)
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
        contents.faults.append(f"the entry at byte {begun} is of the unknown kind {kind}")
    except UnicodeDecodeError:
        contents.faults.append(f"the entry at byte {begun} is not UTF-8")
    return at


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = read_length(data, at)
    if length > len(data) - at:
        raise TruncatedEntryError
    return data[at : at + length], at + length


def read_length(data: bytes, at: int) -> tuple[int, int]:
    if at + LENGTH_FIELD.size > len(data):
        raise TruncatedEntryError
    return LENGTH_FIELD.unpack_from(data, at)[0], at + LENGTH_FIELD.size
