"""Commands: how soon what was typed is done, from the start of its process."""

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
    """Until the first byte of what was asked has reached a daemon. Here it is one that listens."""
    with tempfile.TemporaryDirectory() as scratch, socket.socket(socket.AF_UNIX) as listener:
        path = Path(scratch) / "run" / "crabtalk.sock"
        path.parent.mkdir()
        listener.bind(str(path))
        listener.listen()
        begun = read_clock()
        words = [str(CRABTALK), "ask", "--home", scratch, "hello"]
        with subprocess.Popen(words, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL):
            line, _ = listener.accept()
            with line:
                assert line.recv(4)
                return read_clock() - begun


def time_until_helped() -> float:
    begun = read_clock()
    subprocess.run([CRABTALK, "--help"], stdout=DEVNULL, check=True)
    return read_clock() - begun


def time_until_listed() -> float:
    """What is installed in a home that is empty."""
    with tempfile.TemporaryDirectory() as scratch:
        begun = read_clock()
        subprocess.run(
            [CRABUP, "list", "--home", scratch], stdout=DEVNULL, stderr=DEVNULL, check=True
        )
        return read_clock() - begun


def time_bare_python() -> float:
    begun = read_clock()
    subprocess.run([sys.executable, "-c", "import asyncio, click"], check=True)
    return read_clock() - begun


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
        taken = [measure() * 1e3 for _ in range(STARTS)]
        table.add_row(name, f"{compute_percentile(taken, 0.5):.0f}", f"{max(taken):.0f}")
    return [table]
