"""Clock: time and ids from one object, so that a test can replace both."""

import os
import time
from datetime import UTC, datetime


class Clock:
    def now(self) -> str:
        """The current time in UTC, as in RFC 3339."""
        return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def monotonic(self) -> float:
        """Seconds, for measuring durations."""
        return time.monotonic()

    def new_id(self) -> str:
        """A run id: random, so unique across restarts as well."""
        return os.urandom(8).hex()
