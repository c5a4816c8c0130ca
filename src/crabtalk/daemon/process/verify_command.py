"""`crabtalkd verify`: checks the checksums of a home's session logs and memories.

It starts nothing, and a daemon may be running. Memories are checked first, then logs, the most
recent first, until the time is up; the report says how many files were not checked.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from crabtalk.memory import MemoryStoreError, verify_memory
from crabtalk.storage import verify_log

# Damaged records to list per file; the others are counted.
MAX_RECORDS_NAMED = 20


class DamagedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`problem` is a sentence about the record, `next_step` what to do about it."""

    file: str
    problem: str
    next_step: str
    line: int | None = None  # of a log
    message_id: int | None = None
    at: str = ""
    entry: str = ""  # of a memory


class VerificationReport(msgspec.Struct, frozen=True):
    home: str
    damage: list[DamagedRecord]
    unnamed: int  # damaged records that are not listed
    checked: int  # files
    unchecked: int


class FileDamage(NamedTuple):
    named: list[DamagedRecord]
    unnamed: int


def verify_home(home: Path, seconds: float | None = None) -> VerificationReport:
    """Check all files, or stop after `seconds`. A file that was begun is finished."""
    end = None if seconds is None else time.monotonic() + seconds
    damage: list[DamagedRecord] = []
    unnamed = checked = unchecked = 0
    for path in list_files(home):
        if end is not None and time.monotonic() > end:
            unchecked += 1
            continue
        checked += 1
        damage_in_file = check_memory(path) if path.suffix == ".crmem" else check_log(path)
        damage += damage_in_file.named
        unnamed += damage_in_file.unnamed
    return VerificationReport(str(home), damage, unnamed, checked, unchecked)


def list_files(home: Path) -> Iterator[Path]:
    memories = {
        path.with_name(path.name.removesuffix(".journal"))
        for pattern in ("*.crmem", "*.crmem.journal")
        for path in (home / "memory").rglob(pattern)
    }
    yield from sorted(memories)
    logs = [(read_mtime(path), path) for path in (home / "sessions").glob("*.jsonl")]
    yield from (path for _, path in sorted(logs, reverse=True))


def read_mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # deleted meanwhile
        return 0.0


def check_log(path: Path) -> FileDamage:
    try:
        records = verify_log(path)
    except FileNotFoundError:
        return FileDamage([], 0)
    except OSError as error:
        return report_unreadable(path, error.strerror or str(error))
    named = [
        DamagedRecord(
            str(path),
            record.text,
            CUT_ADVICE if record.fault == "cut" else RESTORE_ADVICE,
            line=record.line,
            message_id=record.message_id,
            at=record.at,
        )
        for record in records[:MAX_RECORDS_NAMED]
    ]
    return FileDamage(named, len(records) - len(named))


CUT_ADVICE = "the daemon removes it when the conversation is next used"
RESTORE_ADVICE = "restore the file from a backup, or go on without this record"
REWRITE_ADVICE = (
    "write the entry again, or stop the daemon and remove {sums} to accept the memory as it is"
)
REPAIR_ADVICE = "the daemon keeps a copy and uses what can be read; restore the file from a backup"


def check_memory(path: Path) -> FileDamage:
    try:
        records = verify_memory(path)
    except MemoryStoreError as error:
        return report_unreadable(path, str(error))
    step = REWRITE_ADVICE.format(sums=f"{path}.sums")
    named = [
        DamagedRecord(
            str(path),
            record.text,
            REPAIR_ADVICE if record.fault in ("unreadable", "journal") else step,
            entry=record.name,
        )
        for record in records[:MAX_RECORDS_NAMED]
    ]
    return FileDamage(named, len(records) - len(named))


def report_unreadable(path: Path, reason: str) -> FileDamage:
    text = f"the file cannot be read: {reason}"
    return FileDamage(
        [DamagedRecord(str(path), text, "make it readable to you, then try again")], 0
    )


def encode_report(report: VerificationReport) -> str:
    return msgspec.json.encode(report).decode()


def format_report(report: VerificationReport) -> str:
    lines = [f"{record.file}: {record.problem}; {record.next_step}" for record in report.damage]
    if report.unnamed:
        lines.append(f"{report.unnamed} more damaged records are not listed")
    if report.unchecked:
        lines.append(f"{report.unchecked} files were not looked at: the time was up")
    if not report.damage:
        lines.append(f"no damage in {report.checked} files of {report.home}")
    return "\n".join(lines)
