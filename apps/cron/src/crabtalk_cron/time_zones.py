"""Zones: that of this machine, and any by its name."""

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo


class LocalZone(tzinfo):
    """The zone of this machine, whichever that is when asked: people move, and so do laptops."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, moment: datetime) -> datetime:
        seconds = moment.replace(tzinfo=UTC).timestamp()
        # Only a time that was made without a zone says which of two equal hours it is in.
        return datetime.fromtimestamp(seconds).replace(tzinfo=self)


LOCAL_ZONE = LocalZone()


def find_zone(name: str) -> tzinfo:
    """Raises ValueError."""
    try:
        return ZoneInfo(name)
    except (LookupError, OSError, ValueError):  # a folder of zones is an OSError
        raise ValueError(f"{name!r} is no time zone; write one like Europe/Berlin or UTC") from None
