"""Entries: one table of crons.toml as a value. It knows nothing of files and lines."""

import re
from dataclasses import dataclass
from datetime import time, tzinfo
from typing import Any

from .expression import CronExpression, ExpressionError
from .schedule import CronSchedule, QuietHours
from .time_zones import find_zone

DEFAULT_SENDER = "cron"
OWNER = "user"
MODES = ("plan", "ask", "accept-edits", "auto")
MAX_JITTER = 3600
KINDS: dict[str, type | tuple[type, ...]] = {
    "id": int,
    "schedule": str,
    "agent": str,
    "skill": str,
    "message": str,
    "sender": str,
    "created_by": str,
    "mode": str,
    "tz": str,
    "quiet_start": str,
    "quiet_end": str,
    "once": bool,
    "jitter": (int, float),
}
KIND_NAMES = {int: "a whole number", str: 'text, in "quotes"', bool: "true or false"}
CLOCK_PATTERN = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class CronEntry:
    """Sends `content` to `agent` at the times of the schedule."""

    id: int
    schedule: CronSchedule
    agent: str
    content: str
    sender: str = DEFAULT_SENDER
    once: bool = False
    jitter: float = 0.0  # largest random delay in seconds
    created_by: str = OWNER  # the sender whose rights its turns have
    mode: str = ""  # the permission mode of its turns; empty: the conversation's

    @property
    def title(self) -> str:
        """For logs: identifies the entry without the text of its message."""
        description = self.content.split()[0] if self.content.startswith("/") else "a message"
        return f"cron {self.id} ({description} to {self.agent})"


class EntryError(ValueError):
    """An error in an entry, and the key it is about."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def parse_entry(table: dict[str, Any], zone: tzinfo) -> CronEntry:
    """Raises EntryError."""
    for key, kind in KINDS.items():
        check_kind(table, key, kind)
    for key in ("id", "schedule", "agent"):
        if key not in table:
            raise EntryError(key, f"this entry has no {key}; add one")
    if not 0 <= table["id"] < 2**64:
        raise EntryError("id", f"the id {table['id']} is not within 0 and 2^64")
    for key in ("agent", "sender", "created_by"):
        if table.get(key) == "":
            raise EntryError(key, f"{key} is empty; name one, or leave the line out")
    mode = table.get("mode", "")
    if "mode" in table and mode not in MODES:
        raise EntryError("mode", f"mode {mode!r} is none of {', '.join(MODES)}; write one")
    sender = table.get("sender", DEFAULT_SENDER)
    return CronEntry(
        id=table["id"],
        schedule=CronSchedule(
            parse_expression(table), parse_zone(table, zone), parse_quiet_hours(table)
        ),
        agent=table["agent"],
        content=parse_content(table),
        sender=sender,
        created_by=table.get("created_by", choose_default_creator(sender)),
        mode=mode,
        once=table.get("once", False),
        jitter=parse_jitter(table),
    )


def choose_default_creator(sender: str) -> str:
    """The creator of an entry that does not name one.

    The file is in the daemon's home, so the owner wrote it. But an entry that writes in another
    person's conversation reads that person's messages, and must not act on them with the owner's
    rights.
    """
    is_own = sender in (DEFAULT_SENDER, OWNER) or sender.startswith(
        (f"{DEFAULT_SENDER}:", f"{OWNER}~")
    )
    return OWNER if is_own else sender


def check_kind(table: dict[str, Any], key: str, kind: type | tuple[type, ...]) -> None:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    # type() instead of isinstance(), because bool is a subclass of int.
    if key in table and type(table[key]) not in kinds:
        raise EntryError(key, f"{key} must be {KIND_NAMES[kinds[0]]}")


def parse_expression(table: dict[str, Any]) -> CronExpression:
    try:
        return CronExpression.parse(table["schedule"])
    except ExpressionError as error:
        raise EntryError("schedule", f"schedule {table['schedule']!r}: {error}") from None


def parse_zone(table: dict[str, Any], default: tzinfo) -> tzinfo:
    if "tz" not in table:
        return default
    try:
        return find_zone(table["tz"])
    except (TypeError, ValueError) as error:
        raise EntryError("tz", f"tz: {error}") from None


def parse_quiet_hours(table: dict[str, Any]) -> QuietHours | None:
    """None unless both ends are there, as in RFC 0080."""
    ends = [parse_clock_time(table, key) for key in ("quiet_start", "quiet_end") if key in table]
    return QuietHours(*ends) if len(ends) == 2 else None


def parse_clock_time(table: dict[str, Any], key: str) -> time:
    match = CLOCK_PATTERN.fullmatch(table[key])
    if not match:
        raise EntryError(key, f"{key} {table[key]!r} is no time; write one like 23:00")
    return time(int(match[1]), int(match[2]))


def parse_content(table: dict[str, Any]) -> str:
    skill, message = table.get("skill"), table.get("message")
    if (skill is None) == (message is None):
        key = "skill" if skill is not None else ""
        raise EntryError(key, "an entry has a skill or a message: one of them, and not both")
    if message is not None:
        if not message.strip():
            raise EntryError("message", "message is empty; say something")
        return str(message)
    if not skill or skill != skill.strip() or skill.startswith("/") or "\n" in skill:
        raise EntryError("skill", f"skill {skill!r}: write its name, without the slash")
    return f"/{skill}"


def parse_jitter(table: dict[str, Any]) -> float:
    jitter = float(table.get("jitter", 0))
    if not 0 <= jitter <= MAX_JITTER:  # also refuses nan
        raise EntryError("jitter", f"jitter is a number of seconds, {MAX_JITTER} at most")
    return jitter
