"""The speed table of the README, filled with cells of the tables in bench/README.md.

This module measures nothing itself.
"""

import re
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).parents[1] / "bench" / "README.md"


class NotMeasuredError(Exception):
    """A cell that the README shows is not in bench/README.md any more."""


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """A line of the README: cells of one row of a measured table, formatted as text."""

    what: str
    table: str
    row: tuple[str, ...]  # its first cells
    columns: tuple[str, ...]
    words: str  # with a {} for each column
    bench: str  # the name that `python -m bench` knows


SPEED_ROWS = (
    SpeedRow(
        "From the start of the process to its first pong",
        "Process start to first pong, ms",
        ("crabtalkd run",),
        ("median",),
        "{} ms",
        "footprint",
    ),
    SpeedRow(
        "Memory of an idle daemon", "Resident memory, MB", ("0",), ("RSS",), "{} MB", "footprint"
    ),
    SpeedRow(
        "A ping and its pong over the Unix socket, one core for each side",
        "Ping round trip, µs",
        ("unix", "one each"),
        ("ours p50", "bare p50"),
        "{} µs; a bare echo takes {}",
        "ping",
    ),
    SpeedRow(
        "Delay between the first chunk of a model and the client's",
        "Added latency: the model's first chunk to the client's, ms",
        ("crabtalk",),
        ("p50", "p99"),
        "{} ms; at the 99th percentile {}",
        "turns",
    ),
    SpeedRow(
        "A thousand conversations at once, 5 chunks a second each, on one core",
        "Many conversations at once, the daemon on one core",
        ("crabtalk", "1,000", "5"),
        ("lag p50 ms", "p99", "RSS MB"),
        "{} ms late; at the 99th percentile {}; {} MB",
        "turns",
    ),
    SpeedRow(
        "CPU for a streamed chunk of a model",
        "CPU time a streamed chunk, µs",
        ("ours",),
        ("burst", "paced 1/ms"),
        "{} µs in a burst; {} at one a millisecond",
        "model",
    ),
    SpeedRow(
        "Storing one message, in a conversation of 10,000",
        "One conversation, by its length, ms",
        ("10,000",),
        ("append p50",),
        "{} ms, flushed",
        "history",
    ),
    SpeedRow(
        "Searching a million messages, with excerpts",
        "Session search, CPU ms of a query with its excerpts, p50 / p99",
        ("1,000,000",),
        ("all p99",),
        "{} ms of CPU, at the 99th percentile",
        "search",
    ),
    SpeedRow(
        "From a key press to its echo, while 200 tokens a second are shown",
        "Key press to echo while 200 tokens a second stream, ms",
        ("crabtalk, 80x24",),
        ("median", "worst"),
        "{} ms; at worst {}",
        "keys",
    ),
    SpeedRow(
        "Opening the chat with 10,000 lines of history",
        "Opening the chat, ms",
        ("10,000 lines of history",),
        ("median",),
        "{} ms",
        "keys",
    ),
)


def render_speed_table() -> str:
    """Render the table of the README."""
    measured = BENCH.read_text(encoding="utf-8")
    lines = ["| | measured | by |", "|---|---|---|"]
    for shown in SPEED_ROWS:
        command = f"`.venv/bin/python -m bench {shown.bench}`"
        lines.append(f"| {shown.what} | {format_cells(shown, measured)} | {command} |")
    return "\n".join(lines)


def format_cells(shown: SpeedRow, measured: str) -> str:
    head, *rows = read_table(measured, shown.table)
    for row in rows:
        if row[: len(shown.row)] == list(shown.row):
            break
    else:
        raise NotMeasuredError(f"{shown.table!r} has no row {', '.join(shown.row)}")
    for column in shown.columns:
        if column not in head:
            raise NotMeasuredError(f"{shown.table!r} has no column {column!r}")
    return shown.words.format(*(row[head.index(column)] for column in shown.columns))


def read_table(measured: str, title: str) -> list[list[str]]:
    """Return the rows of the table below this heading, the head first, without the ruler line."""
    found = re.search(rf"^### {re.escape(title)}\n\n((?:\|.*\n)+)", measured, re.MULTILINE)
    if found is None:
        raise NotMeasuredError(f"bench/README.md has no table {title!r}")
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in found[1].splitlines()]
    return [rows[0], *rows[2:]]
