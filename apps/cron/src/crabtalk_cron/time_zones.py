"""Time zones: the zone of this machine, and zones by name."""

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo


class LocalZone(tzinfo):
    """The zone of this machine. It is looked up at each call, because laptops travel."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, moment: datetime) -> datetime:
        seconds = moment.replace(tzinfo=UTC).timestamp()
        # Only a naive time can say which of the two repeated hours it is in.
        return datetime.fromtimestamp(seconds).replace(tzinfo=self)


LOCAL_ZONE = LocalZone()


def find_zone(name: str) -> tzinfo:
    """Raises ValueError."""
    try:
        return ZoneInfo(name)
    except (LookupError, OSError, ValueError):  # the name of a folder gives an OSError
        raise ValueError(f"{name!r} is no time zone; write one like Europe/Berlin or UTC") from None
