"""How long a command takes, on a machine where others are at work too."""

import subprocess
import sys
import time
from collections.abc import Callable

ATTEMPTS = 40
# What a bare Python takes where nobody else is at work, in seconds; less is not counted.
IDLE_START_SECONDS = 0.015


def assert_quick(measure: Callable[[], float], seconds: float) -> None:
    """The best of some measures is within `seconds`, or within as many bare starts of Python as
    would take that long on an idle machine."""
    taken: list[float] = []
    bare: list[float] = []
    while len(taken) < ATTEMPTS:
        taken.append(measure())
        bare.append(measure_python_start())
        if min(taken) <= seconds * max(1, min(bare) / IDLE_START_SECONDS):
            return
    raise AssertionError(f"took {min(taken) * 1000:.0f} ms, Python alone {min(bare) * 1000:.0f} ms")


def measure_python_start() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - begun
