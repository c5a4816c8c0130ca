"""Checksums of a snapshot, in a file beside it, because CRMEM has no room for them.

`<name>.crmem.sums` has three lines: the snapshots it belongs to, a hash of each entry, and a hash
of the first two lines. It is written before its snapshot and names the previous one too, so that
after a crash it fits either of them. No I/O in this module.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

import msgspec
from msgspec import Struct

from .crmem import encode_entry
from .entry import MemoryEntry, quote_name

DamageKind = Literal["changed", "added", "missing", "header", "sums", "unreadable", "journal"]
VERSION = 1
MAX_NAMED = 5  # damaged entries named in one sentence


class MemoryDamage(Struct, frozen=True):
    """Damage found in a memory. `name` and `id` are those of the damaged entry, if there is one."""

    fault: DamageKind
    text: str  # a sentence, without the file's name
    id: int | None = None
    name: str = ""


class ChecksumHeader(Struct, frozen=True):
    """The first line.

    `suspects` are entries that were already damaged when it was written: the hash they had then by
    id, empty for a missing one.
    """

    snapshot: str
    previous: str = ""
    suspects: dict[int, str] = {}
    version: int = VERSION


@dataclass(slots=True)
class SnapshotCheck:
    """`suspects` are the damaged entries by id, None for missing ones."""

    damage: list[MemoryDamage] = field(default_factory=list)
    suspects: dict[int, MemoryEntry | None] = field(default_factory=dict)


SuspectEntries = Mapping[int, MemoryEntry | None]
HEADER_DECODER = msgspec.json.Decoder(ChecksumHeader)
HASHES_DECODER = msgspec.json.Decoder(dict[int, str])


def hash_snapshot(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def hash_entry(entry: MemoryEntry) -> str:
    return blake2b(encode_entry(entry), digest_size=8).hexdigest()


def encode_checksums(
    entries: Iterable[MemoryEntry],
    snapshot: str,
    previous: str = "",
    suspects: SuspectEntries | None = None,
) -> bytes:
    """`snapshot` and `previous` are hashes. Suspects that were rewritten are left out."""
    known = {entry.id: entry for entry in entries}
    remaining = {
        number: hash_entry(entry) if entry is not None else ""
        for number, entry in (suspects or {}).items()
        if known.get(number) == entry
    }
    hashes = {str(number): hash_entry(entry) for number, entry in known.items()}
    lines = b"%b\n%b\n" % (
        msgspec.json.encode(ChecksumHeader(snapshot, previous, remaining)),
        msgspec.json.encode(hashes),
    )
    return lines + hash_snapshot(lines).encode() + b"\n"


def check_snapshot(data: bytes, entries: Iterable[MemoryEntry], sums: bytes) -> SnapshotCheck:
    """Compare a snapshot with its checksums. Without checksums or snapshot there is no damage."""
    if not sums or not data:
        return SnapshotCheck()
    try:
        header, hashes = split_checksums(sums)
    except ValueError:
        text = "its checksums are damaged, so its entries cannot be checked"
        return SnapshotCheck([MemoryDamage("sums", text)])
    known = {entry.id: entry for entry in entries}
    if header.version != VERSION:
        return SnapshotCheck()
    if hash_snapshot(data) in (header.snapshot, header.previous):
        return find_known_suspects(header, known)
    return compare_entries(known, HASHES_DECODER.decode(hashes), header)


def split_checksums(sums: bytes) -> tuple[ChecksumHeader, bytes]:
    """Raises ValueError for bytes that `encode_checksums` did not write."""
    lines = sums.split(b"\n")
    if len(lines) != 4 or lines[3]:
        raise ValueError("not three lines")
    covered = sums[: len(lines[0]) + len(lines[1]) + 2]
    if hash_snapshot(covered).encode() != lines[2]:
        raise ValueError("the checksum does not match")
    try:
        return HEADER_DECODER.decode(lines[0]), lines[1]
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def find_known_suspects(header: ChecksumHeader, known: Mapping[int, MemoryEntry]) -> SnapshotCheck:
    check = SnapshotCheck()
    for number, expected in header.suspects.items():
        entry = known.get(number)
        if entry is None and not expected:
            check.suspects[number] = None
            check.damage.append(report_missing(number))
        elif entry is not None and hash_entry(entry) == expected:
            check.suspects[number] = entry
            check.damage.append(report_changed(entry))
    return check


def compare_entries(
    known: Mapping[int, MemoryEntry], hashes: dict[int, str], header: ChecksumHeader
) -> SnapshotCheck:
    check = find_known_suspects(header, known)
    for number, entry in known.items():
        if number in check.suspects:
            continue
        expected = hashes.get(number)
        if expected is None:
            text = f"entry {quote_name(entry.name)} was added outside crabtalk"
            check.damage.append(MemoryDamage("added", text, number, entry.name))
        elif expected != hash_entry(entry):
            check.damage.append(report_changed(entry))
        else:
            continue
        check.suspects[number] = entry
    for number in hashes.keys() - known.keys() - check.suspects.keys():
        check.damage.append(report_missing(number))
        check.suspects[number] = None
    if not check.damage:
        text = "it is not what was written, though all its entries are"
        check.damage.append(MemoryDamage("header", text))
    return check


def report_changed(entry: MemoryEntry) -> MemoryDamage:
    text = f"entry {quote_name(entry.name)} is not what was written"
    return MemoryDamage("changed", text, entry.id, entry.name)


def report_missing(number: int) -> MemoryDamage:
    return MemoryDamage("missing", f"entry {number} is missing", number)


def describe_damage(name: str, damage: list[MemoryDamage]) -> str:
    """One sentence about the damage of the file called `name`; empty when there is none."""
    if not damage:
        return ""
    listed = "; ".join(item.text for item in damage[:MAX_NAMED])
    more = f"; and {len(damage) - MAX_NAMED} more" if len(damage) > MAX_NAMED else ""
    if damage[0].fault == "sums":
        return f"{name}: {listed}{more}; the next change writes them anew"
    return (
        f"{name} was changed outside crabtalk, by damage or by another program: {listed}{more}; "
        f"write these entries again, or accept the file as it is: stop the daemon and remove "
        f"{name}.sums"
    )
