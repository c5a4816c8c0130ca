"""Commands: how soon what was typed is done, from the start of its process."""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from .peers import now, percentile
from .report import Table

CRABTALK = Path(sys.executable).with_name("crabtalk")
CRABUP = CRABTALK.with_name("crabup")
STARTS = 30
NULL = subprocess.DEVNULL


def until_sent() -> float:
    """Until the first byte of what was asked has reached a daemon. Here it is one that listens."""
    with tempfile.TemporaryDirectory() as scratch, socket.socket(socket.AF_UNIX) as listener:
        path = Path(scratch) / "run" / "crabtalk.sock"
        path.parent.mkdir()
        listener.bind(str(path))
        listener.listen()
        begun = now()
        words = [str(CRABTALK), "ask", "--home", scratch, "hello"]
        with subprocess.Popen(words, stdin=NULL, stdout=NULL, stderr=NULL):
            line, _ = listener.accept()
            with line:
                assert line.recv(4)
                return now() - begun


def until_helped() -> float:
    begun = now()
    subprocess.run([CRABTALK, "--help"], stdout=NULL, check=True)
    return now() - begun


def until_listed() -> float:
    """What is installed in a home that is empty."""
    with tempfile.TemporaryDirectory() as scratch:
        begun = now()
        subprocess.run([CRABUP, "list", "--home", scratch], stdout=NULL, stderr=NULL, check=True)
        return now() - begun


def bare() -> float:
    begun = now()
    subprocess.run([sys.executable, "-c", "import asyncio, click"], check=True)
    return now() - begun


def run() -> list[Table]:
    table = Table(
        "Commands, ms from the start of the process",
        ["", "p50", f"worst of {STARTS}"],
        note="The last row is Python that loads asyncio and click, and does nothing.",
    )
    rows: dict[str, Callable[[], float]] = {
        "`crabtalk ask`, until the request is sent": until_sent,
        "`crabtalk --help`, until it is printed": until_helped,
        "`crabup list`": until_listed,
        "a bare program": bare,
    }
    for name, measure in rows.items():
        measure()
        taken = [measure() * 1e3 for _ in range(STARTS)]
        table.row(name, f"{percentile(taken, 0.5):.0f}", f"{max(taken):.0f}")
    return [table]
