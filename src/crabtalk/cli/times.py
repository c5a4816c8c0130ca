"""Parse and format times: local time for people, RFC 3339 on the wire."""

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
    """Format Unix seconds as RFC 3339, or as `@SECONDS` if they are out of its range."""
    try:
        return format_rfc3339(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        return f"@{seconds}"


def parse_timestamp(time: str) -> int:
    """Parse what `format_timestamp` wrote; 0 for any other text."""
    try:
        return int(datetime.fromisoformat(time).timestamp())
    except (ValueError, OverflowError):
        return int(time[1:]) if re.fullmatch(r"@\d{1,20}", time) else 0


def format_local_time(time: str) -> str:
    """Format RFC 3339 in the local time zone; other text is returned as it is."""
    try:
        return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):
        return time


def format_day(seconds: int) -> str:
    """Format the local day of Unix seconds."""
    return format_local_time(format_timestamp(seconds))[:10]


def format_age(seconds: float) -> str:
    """Format a duration in the largest unit that fits, as in `3 days`."""
    for size, unit in AGE_UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "a moment"
