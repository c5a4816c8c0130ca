"""Checksums of a snapshot, in a file beside it: CRMEM has no room for them, and stays as it is.

`<name>.crmem.sums` has three lines: which snapshots it is about, a hash of each entry, and a hash
of the first two lines. It is written before the snapshot it is about and names the one before as
well, so that after a crash it fits whichever of the two is there. Pure: bytes in, findings out.
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
MAX_NAMED = 5  # of many damaged entries in one sentence


class MemoryDamage(Struct, frozen=True):
    """What is wrong with a memory. `name` and `id` are those of the entry it is about, if any."""

    fault: DamageKind
    text: str  # a sentence, without the file's name
    id: int | None = None
    name: str = ""


class ChecksumHeader(Struct, frozen=True):
    """The first line. `suspects` are entries that were not what was written when this was: by id
    the hash they had then, empty for one that was missing."""

    snapshot: str
    previous: str = ""
    suspects: dict[int, str] = {}
    version: int = VERSION


@dataclass(slots=True)
class SnapshotCheck:
    """`suspects` are the entries that are not to be trusted, None for those that are missing."""

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
    """`snapshot` and `previous` are hashes. Suspects that were written again are none any more."""
    known = {entry.id: entry for entry in entries}
    still = {
        number: hash_entry(entry) if entry is not None else ""
        for number, entry in (suspects or {}).items()
        if known.get(number) == entry
    }
    hashes = {str(number): hash_entry(entry) for number, entry in known.items()}
    lines = b"%b\n%b\n" % (
        msgspec.json.encode(ChecksumHeader(snapshot, previous, still)),
        msgspec.json.encode(hashes),
    )
    return lines + hash_snapshot(lines).encode() + b"\n"


def check_snapshot(data: bytes, entries: Iterable[MemoryEntry], sums: bytes) -> SnapshotCheck:
    """Compares a snapshot with its checksums. Where there are none, or no snapshot, all is well."""
    if not sums or not data:
        return SnapshotCheck()
    try:
        about, hashes = split_checksums(sums)
    except ValueError:
        text = "its checksums are damaged, so its entries cannot be checked"
        return SnapshotCheck([MemoryDamage("sums", text)])
    known = {entry.id: entry for entry in entries}
    if about.version != VERSION:
        return SnapshotCheck()
    if hash_snapshot(data) in (about.snapshot, about.previous):
        return find_known_suspects(about, known)
    return compare_entries(known, HASHES_DECODER.decode(hashes), about)


def split_checksums(sums: bytes) -> tuple[ChecksumHeader, bytes]:
    """Raises ValueError for bytes that `encode_sums` did not write."""
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


def find_known_suspects(about: ChecksumHeader, known: Mapping[int, MemoryEntry]) -> SnapshotCheck:
    verdict = SnapshotCheck()
    for number, expected in about.suspects.items():
        entry = known.get(number)
        if entry is None and not expected:
            verdict.suspects[number] = None
            verdict.damage.append(report_missing(number))
        elif entry is not None and hash_entry(entry) == expected:
            verdict.suspects[number] = entry
            verdict.damage.append(report_changed(entry))
    return verdict


def compare_entries(
    known: Mapping[int, MemoryEntry], hashes: dict[int, str], about: ChecksumHeader
) -> SnapshotCheck:
    verdict = find_known_suspects(about, known)
    for number, entry in known.items():
        if number in verdict.suspects:
            continue
        expected = hashes.get(number)
        if expected is None:
            text = f"entry {quote_name(entry.name)} was added outside crabtalk"
            verdict.damage.append(MemoryDamage("added", text, number, entry.name))
        elif expected != hash_entry(entry):
            verdict.damage.append(report_changed(entry))
        else:
            continue
        verdict.suspects[number] = entry
    for number in hashes.keys() - known.keys() - verdict.suspects.keys():
        verdict.damage.append(report_missing(number))
        verdict.suspects[number] = None
    if not verdict.damage:
        text = "it is not what was written, though all its entries are"
        verdict.damage.append(MemoryDamage("header", text))
    return verdict


def report_changed(entry: MemoryEntry) -> MemoryDamage:
    text = f"entry {quote_name(entry.name)} is not what was written"
    return MemoryDamage("changed", text, entry.id, entry.name)


def report_missing(number: int) -> MemoryDamage:
    return MemoryDamage("missing", f"entry {number} is missing", number)


def describe_damage(name: str, damage: list[MemoryDamage]) -> str:
    """One sentence about the file called `name`; empty when nothing is wrong."""
    if not damage:
        return ""
    told = "; ".join(one.text for one in damage[:MAX_NAMED])
    more = f"; and {len(damage) - MAX_NAMED} more" if len(damage) > MAX_NAMED else ""
    if damage[0].fault == "sums":
        return f"{name}: {told}{more}; the next change writes them anew"
    return (
        f"{name} was changed outside crabtalk, by damage or by another program: {told}{more}; "
        f"write these entries again, or accept the file as it is: stop the daemon and remove "
        f"{name}.sums"
    )
