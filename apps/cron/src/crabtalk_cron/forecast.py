"""Forecasts: the next times of an entry, for people and for programs."""

from datetime import datetime
from itertools import islice
from typing import Any

from crabtalk.service.command_line import to_one_line

from .clock import CronClock
from .entry import CronEntry


def list_next_times(entry: CronEntry, count: int) -> list[datetime]:
    ticks = islice(entry.schedule.iterate_ticks(CronClock().now()), count)
    return [datetime.fromtimestamp(tick.moment, entry.schedule.zone) for tick in ticks]


def build_rows(entry: CronEntry, moments: list[datetime]) -> list[tuple[str, ...]]:
    target = to_one_line(f"{entry.agent} {to_one_line(entry.content, 40)}")
    delay = f" and up to {entry.jitter:g} s later" if entry.jitter else ""
    times = [f"{moment:%a %Y-%m-%d %H:%M:%S %z}{delay}" for moment in moments] or ["never"]
    return [(str(entry.id), target, time) for time in times]


def to_json(entry: CronEntry, moments: list[datetime]) -> dict[str, Any]:
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
