"""Entries: what one table of crons.toml says, as a value. Of files and lines it knows nothing."""

import re
from dataclasses import dataclass
from datetime import time, tzinfo
from typing import Any

from .expression import Expression, ExpressionError
from .schedule import Quiet, Schedule
from .zones import zone_called

SENDER = "cron"
OWNER = "user"
MODES = ("plan", "ask", "accept-edits", "auto")
MOST_JITTER = 3600
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
CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class Entry:
    """`agent` is told `content` whenever the schedule says so."""

    id: int
    schedule: Schedule
    agent: str
    content: str
    sender: str = SENDER
    once: bool = False
    jitter: float = 0.0  # seconds it may come later
    created_by: str = OWNER  # the sender whose rights its turns have
    mode: str = ""  # the permission mode of its turns; empty: the conversation's

    @property
    def title(self) -> str:
        """For logs: which one it is, and nothing of what a message says."""
        what = self.content.split()[0] if self.content.startswith("/") else "a message"
        return f"cron {self.id} ({what} to {self.agent})"


class MistakeError(ValueError):
    """What is wrong with an entry, and which key it is about."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def read_table(table: dict[str, Any], zone: tzinfo) -> Entry:
    """Raises MistakeError."""
    for key, kind in KINDS.items():
        check_kind(table, key, kind)
    for key in ("id", "schedule", "agent"):
        if key not in table:
            raise MistakeError(key, f"this entry has no {key}; add one")
    if not 0 <= table["id"] < 2**64:
        raise MistakeError("id", f"the id {table['id']} is not within 0 and 2^64")
    for key in ("agent", "sender", "created_by"):
        if table.get(key) == "":
            raise MistakeError(key, f"{key} is empty; name one, or leave the line out")
    mode = table.get("mode", "")
    if "mode" in table and mode not in MODES:
        raise MistakeError("mode", f"mode {mode!r} is none of {', '.join(MODES)}; write one")
    sender = table.get("sender", SENDER)
    return Entry(
        id=table["id"],
        schedule=Schedule(expression_of(table), zone_of(table, zone), quiet_of(table)),
        agent=table["agent"],
        content=content_of(table),
        sender=sender,
        created_by=table.get("created_by", default_creator(sender)),
        mode=mode,
        once=table.get("once", False),
        jitter=jitter_of(table),
    )


def default_creator(sender: str) -> str:
    """Who set a job up that does not say so.

    The file is in the daemon's home, so it was the owner. But a job that speaks in somebody else's
    conversation reads what they wrote there, and must not act on it with the owner's rights.
    """
    is_own = sender in (SENDER, OWNER) or sender.startswith((f"{SENDER}:", f"{OWNER}~"))
    return OWNER if is_own else sender


def check_kind(table: dict[str, Any], key: str, kind: type | tuple[type, ...]) -> None:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    # By type and not by isinstance: to Python, true is a number.
    if key in table and type(table[key]) not in kinds:
        raise MistakeError(key, f"{key} must be {KIND_NAMES[kinds[0]]}")


def expression_of(table: dict[str, Any]) -> Expression:
    try:
        return Expression.parse(table["schedule"])
    except ExpressionError as error:
        raise MistakeError("schedule", f"schedule {table['schedule']!r}: {error}") from None


def zone_of(table: dict[str, Any], default: tzinfo) -> tzinfo:
    if "tz" not in table:
        return default
    try:
        return zone_called(table["tz"])
    except (TypeError, ValueError) as error:
        raise MistakeError("tz", f"tz: {error}") from None


def quiet_of(table: dict[str, Any]) -> Quiet | None:
    """None unless both ends are there, as RFC 0080 has it."""
    ends = [clock_of(table, key) for key in ("quiet_start", "quiet_end") if key in table]
    return Quiet(*ends) if len(ends) == 2 else None


def clock_of(table: dict[str, Any], key: str) -> time:
    found = CLOCK.fullmatch(table[key])
    if not found:
        raise MistakeError(key, f"{key} {table[key]!r} is no time; write one like 23:00")
    return time(int(found[1]), int(found[2]))


def content_of(table: dict[str, Any]) -> str:
    skill, message = table.get("skill"), table.get("message")
    if (skill is None) == (message is None):
        key = "skill" if skill is not None else ""
        raise MistakeError(key, "an entry has a skill or a message: one of them, and not both")
    if message is not None:
        if not message.strip():
            raise MistakeError("message", "message is empty; say something")
        return str(message)
    if not skill or skill != skill.strip() or skill.startswith("/") or "\n" in skill:
        raise MistakeError("skill", f"skill {skill!r}: write its name, without the slash")
    return f"/{skill}"


def jitter_of(table: dict[str, Any]) -> float:
    jitter = float(table.get("jitter", 0))
    if not 0 <= jitter <= MOST_JITTER:  # and so is no nan
        raise MistakeError("jitter", f"jitter is a number of seconds, {MOST_JITTER} at most")
    return jitter
