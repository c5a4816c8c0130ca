"""Footprint: a daemon's start-up time, its memory, and the memory of a thousand idle clients."""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from .processes import PING, compute_percentile, read_clock, read_rss, run_daemon
from .tables import BenchTable

STARTS = 20
CONNECTIONS = (10, 100, 1000)


def time_first_pong(home: Path) -> float:
    """Return milliseconds from starting the process to the first pong that a client gets."""
    import socket

    command = [str(Path(sys.executable).with_name("crabtalkd")), "run", "--home", str(home)]
    start = read_clock()
    with subprocess.Popen([*command, "--tcp", "127.0.0.1:0"], stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                with socket.socket(socket.AF_UNIX) as sock:
                    try:
                        sock.connect(str(home / "run" / "crabtalk.sock"))
                    except (FileNotFoundError, ConnectionRefusedError):
                        continue
                    sock.sendall(PING)
                    assert sock.recv(16) == bytes.fromhex("000000021200")
                    return (read_clock() - start) * 1e3
        finally:
            process.terminate()


def measure_start() -> BenchTable:
    samples = []
    with tempfile.TemporaryDirectory() as scratch:
        time_first_pong(Path(scratch) / "home")  # warm the page cache
        for _ in range(STARTS):
            samples.append(time_first_pong(Path(scratch) / "home"))  # noqa: PERF401
    table = BenchTable("Process start to first pong, ms", ["", "median", "worst of 20"])
    table.add_row("crabtalkd run", f"{compute_percentile(samples, 0.5):.0f}", f"{max(samples):.0f}")
    table.note = "With compiled bytecode, as `make setup` leaves it."
    return table


async def measure_idle() -> BenchTable:
    table = BenchTable(
        "Resident memory, MB", ["idle connections", "RSS", "more than idle", "KB each"]
    )
    with run_daemon() as (home, process):
        base = read_rss(process.pid)
        table.add_row("0", f"{base:.1f}", "", "")
        writers: list[asyncio.StreamWriter] = []
        for count in CONNECTIONS:
            while len(writers) < count:
                reader, writer = await asyncio.open_unix_connection(home / "run" / "crabtalk.sock")
                writer.write(PING)
                await reader.readexactly(6)
                writers.append(writer)
            rss = read_rss(process.pid)
            more = rss - base
            table.add_row(str(count), f"{rss:.1f}", f"{more:.1f}", f"{more * 1024 / count:.1f}")
        for writer in writers:
            writer.close()
    return table


def run_benchmark() -> list[BenchTable]:
    return [measure_start(), asyncio.run(measure_idle())]
