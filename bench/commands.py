"""How long commands take, from the start of their process."""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from .processes import compute_percentile, read_clock
from .tables import BenchTable

CRABTALK = Path(sys.executable).with_name("crabtalk")
CRABUP = CRABTALK.with_name("crabup")
STARTS = 30
DEVNULL = subprocess.DEVNULL


def time_until_sent() -> float:
    """Time until the first byte of the request reaches a daemon, here a plain listener."""
    with tempfile.TemporaryDirectory() as scratch, socket.socket(socket.AF_UNIX) as listener:
        path = Path(scratch) / "run" / "crabtalk.sock"
        path.parent.mkdir()
        listener.bind(str(path))
        listener.listen()
        start = read_clock()
        words = [str(CRABTALK), "ask", "--home", scratch, "hello"]
        with subprocess.Popen(words, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL):
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(4)
                return read_clock() - start


def time_until_helped() -> float:
    start = read_clock()
    subprocess.run([CRABTALK, "--help"], stdout=DEVNULL, check=True)
    return read_clock() - start


def time_until_listed() -> float:
    """Time listing the components of an empty home."""
    with tempfile.TemporaryDirectory() as scratch:
        start = read_clock()
        subprocess.run(
            [CRABUP, "list", "--home", scratch], stdout=DEVNULL, stderr=DEVNULL, check=True
        )
        return read_clock() - start


def time_bare_python() -> float:
    start = read_clock()
    subprocess.run([sys.executable, "-c", "import asyncio, click"], check=True)
    return read_clock() - start


def run_benchmark() -> list[BenchTable]:
    table = BenchTable(
        "Commands, ms from the start of the process",
        ["", "p50", f"worst of {STARTS}"],
        note="The last row is Python that loads asyncio and click, and does nothing.",
    )
    rows: dict[str, Callable[[], float]] = {
        "`crabtalk ask`, until the request is sent": time_until_sent,
        "`crabtalk --help`, until it is printed": time_until_helped,
        "`crabup list`": time_until_listed,
        "a bare program": time_bare_python,
    }
    for name, measure in rows.items():
        measure()
        times = [measure() * 1e3 for _ in range(STARTS)]
        table.add_row(name, f"{compute_percentile(times, 0.5):.0f}", f"{max(times):.0f}")
    return [table]
