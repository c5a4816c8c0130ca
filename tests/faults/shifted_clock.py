"""Runs `crabtalkd run` with a shifted clock: python -m tests.faults.shifted_clock FILE ARGS...

FILE has the offset of the wall clock in seconds; it is read at every call. As when a person sets a
machine's clock, the monotonic clock is not changed.
"""

import datetime
import sys
import time
from pathlib import Path

FILE = Path(sys.argv[1])
read_clock = time.time
RealDatetime = datetime.datetime


def read_offset() -> float:
    return float(FILE.read_text())


class ShiftedDatetime(RealDatetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "ShiftedDatetime":
        return cls.fromtimestamp(read_clock() + read_offset(), tz)


def main() -> None:
    time.time = lambda: read_clock() + read_offset()
    time.time_ns = lambda: int(time.time() * 1e9)
    datetime.datetime = ShiftedDatetime  # type: ignore[misc]
    from crabtalk.daemon.cli import main as run

    sys.argv = ["crabtalkd", "run", *sys.argv[2:]]
    run()


if __name__ == "__main__":
    main()
