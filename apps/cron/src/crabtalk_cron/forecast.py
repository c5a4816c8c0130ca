"""Forecasts: when an entry will be fired next, for people and for programs."""

from datetime import datetime
from itertools import islice
from typing import Any

from crabtalk.component.command import one_line

from .clock import Clock
from .entry import Entry


def next_of(entry: Entry, count: int) -> list[datetime]:
    ticks = islice(entry.schedule.ticks(Clock().now()), count)
    return [datetime.fromtimestamp(tick.moment, entry.schedule.zone) for tick in ticks]


def rows(entry: Entry, moments: list[datetime]) -> list[tuple[str, ...]]:
    who = one_line(f"{entry.agent} {one_line(entry.content, 40)}")
    later = f" and up to {entry.jitter:g} s later" if entry.jitter else ""
    said = [f"{moment:%a %Y-%m-%d %H:%M:%S %z}{later}" for moment in moments] or ["never"]
    return [(str(entry.id), who, when) for when in said]


def as_json(entry: Entry, moments: list[datetime]) -> dict[str, Any]:
    return {
        "id": entry.id,
        "agent": entry.agent,
        "content": entry.content,
        "sender": entry.sender,
        "created_by": entry.created_by,
        "mode": entry.mode or None,
        "once": entry.once,
        "jitter": entry.jitter,
        "next": [moment.isoformat() for moment in moments],
    }
