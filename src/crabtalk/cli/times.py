"""Moments: times as people write and read them, in their own time zone; RFC 3339 on the wire."""

import re
from datetime import UTC, datetime, timedelta

import click

MINUTE, HOUR, DAY = 60, 3600, 86400
SPAN_UNITS = {"m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
AGE_UNITS = (
    (365 * DAY, "year"),
    (30 * DAY, "month"),
    (DAY, "day"),
    (HOUR, "hour"),
    (MINUTE, "minute"),
)
SPAN = re.compile(r"(\d{1,6})([mhdw])")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class TimeParameter(click.ParamType[datetime]):
    """A date, a time, or how long ago. With `whole_day` a date means its end."""

    name = "moment"

    def __init__(self, *, whole_day: bool = False) -> None:
        self._whole_day = whole_day

    def convert(
        self,
        value: str | datetime,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return self._parse(value.strip())
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no time; write 2026-11-01, 2026-11-01T18:30, or 7d for seven days "
                "ago (m, h, d, w)",
                param,
                ctx,
            )

    def _parse(self, text: str) -> datetime:
        if ago := SPAN.fullmatch(text):
            return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * SPAN_UNITS[ago[2]])
        moment = datetime.fromisoformat(text)
        if self._whole_day and DATE.fullmatch(text):
            moment += timedelta(days=1)
        return moment.astimezone(UTC)


def format_rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def format_timestamp(seconds: int) -> str:
    """RFC 3339 of a moment since 1970. What no date can say is said in seconds."""
    try:
        return format_rfc3339(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        return f"@{seconds}"


def parse_timestamp(time: str) -> int:
    """The other way round; 0 for what is no time."""
    try:
        return int(datetime.fromisoformat(time).timestamp())
    except (ValueError, OverflowError):
        return int(time[1:]) if re.fullmatch(r"@\d{1,20}", time) else 0


def format_local_time(time: str) -> str:
    """RFC 3339 as a clock on the wall has it; what is no time, as it is."""
    try:
        return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):
        return time


def format_day(seconds: int) -> str:
    """The day of a moment since 1970."""
    return format_local_time(format_timestamp(seconds))[:10]


def format_age(seconds: float) -> str:
    """`3 days`, in the largest unit there is one of."""
    for size, unit in AGE_UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "a moment"
