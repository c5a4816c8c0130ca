"""Clock: time and ids, in one object, so that a test can bring its own."""

import os
import time
from datetime import UTC, datetime


class Clock:
    def now(self) -> str:
        """RFC 3339, in UTC."""
        return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def monotonic(self) -> float:
        """For durations."""
        return time.monotonic()

    def new_id(self) -> str:
        """For a run: never given out twice, also across restarts."""
        return os.urandom(8).hex()
