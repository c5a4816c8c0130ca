"""Footprint: how soon a daemon answers, what it weighs, and what a thousand idle clients add."""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from .peers import PING, daemon, now, percentile, rss
from .report import Table

STARTS = 20
CONNECTIONS = (10, 100, 1000)


def first_pong(home: Path) -> float:
    """Milliseconds from starting the process to the first pong, as a client sees it that waits."""
    import socket

    command = [str(Path(sys.executable).with_name("crabtalkd")), "run", "--home", str(home)]
    start = now()
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
                    return (now() - start) * 1e3
        finally:
            process.terminate()


def start_up() -> Table:
    samples = []
    with tempfile.TemporaryDirectory() as scratch:
        first_pong(Path(scratch) / "home")  # warm the page cache
        for _ in range(STARTS):
            samples.append(first_pong(Path(scratch) / "home"))  # noqa: PERF401
    table = Table("Process start to first pong, ms", ["", "median", "worst of 20"])
    table.row("crabtalkd run", f"{percentile(samples, 0.5):.0f}", f"{max(samples):.0f}")
    table.note = "With compiled bytecode, as `make setup` leaves it."
    return table


async def idle() -> Table:
    table = Table("Resident memory, MB", ["idle connections", "RSS", "more than idle", "KB each"])
    with daemon() as (home, process):
        base = rss(process.pid)
        table.row("0", f"{base:.1f}", "", "")
        writers: list[asyncio.StreamWriter] = []
        for count in CONNECTIONS:
            while len(writers) < count:
                reader, writer = await asyncio.open_unix_connection(home / "run" / "crabtalk.sock")
                writer.write(PING)
                await reader.readexactly(6)
                writers.append(writer)
            now_at = rss(process.pid)
            more = now_at - base
            table.row(str(count), f"{now_at:.1f}", f"{more:.1f}", f"{more * 1024 / count:.1f}")
        for writer in writers:
            writer.close()
    return table


def run() -> list[Table]:
    return [start_up(), asyncio.run(idle())]
