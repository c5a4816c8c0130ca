"""crabtalk-cron: the command, its verbs, and how any of them ends."""

import asyncio
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crabtalk.component.command import (
    Commands,
    document,
    home_option,
    json_option,
    say,
    show,
    table,
    verbose_option,
)

from . import __version__

if TYPE_CHECKING:
    from .reading import Reading, Remark

NAME = "crabtalk-cron"
EXAMPLES = """\b
Examples:
  crabtalk-cron check
  crabtalk-cron next -n 3
  crabtalk-cron run
"""


class Cron(Commands):
    def complaint(self, error: Exception) -> str | None:
        from crabtalk.component import ComponentError

        return str(error) if isinstance(error, ComponentError | OSError) else None


@click.group(
    NAME, cls=Cron, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")
def main() -> None:
    """Has agents run at the times that config/crons.toml says."""


@main.command()
@home_option
@verbose_option
def run(home: Path, verbose: bool) -> None:
    """Run in the foreground until Ctrl+C or SIGTERM.

    Changes of crons.toml are taken up by themselves. The log is on standard error and in
    logs/cron.log.

    \b
    Example:
      crabtalk-cron run
    """
    from crabtalk.component import Place, start_log
    from crabtalk.transport import remove_leftovers

    place = Place(home, "cron")
    with place.taken():
        start_log(place.log, verbose=verbose)
        remove_leftovers(home / "config")
        asyncio.run(run_until_stopped(home))


async def run_until_stopped(home: Path) -> None:
    from .runner import Runner

    running = asyncio.ensure_future(Runner(home).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


@main.command("next")
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, 1000),
    default=1,
    metavar="N",
    help="So many of each, 1 to 1000.  [default: 1]",
)
@home_option
@json_option
def next_times(count: int, home: Path, in_json: bool) -> None:
    """Print the next times of every entry.

    Quiet hours are left out. Each time is in the zone of its entry.

    \b
    Examples:
      crabtalk-cron next
      crabtalk-cron next -n 5 --json
    """
    from .forecast import as_json, next_of, rows

    found = reading(home)
    complain(home, found)
    times = [(entry, next_of(entry, count)) for entry in found.entries]
    if in_json:
        document({"entries": [as_json(entry, moments) for entry, moments in times]})
    elif times:
        show(table([row for entry, moments in times for row in rows(entry, moments)]))
    else:
        say(f"there are no entries in {path_in(home)}; docs/cron.md says how to write one")
    if found.mistakes:
        sys.exit(1)


@main.command()
@home_option
@json_option
def check(home: Path, in_json: bool) -> None:
    """Say what is wrong in crons.toml, and on which line.

    Exits with 1 if anything is.

    \b
    Example:
      crabtalk-cron check
    """
    from .forecast import next_of

    found = reading(home)
    idle = [entry.id for entry in found.entries if not next_of(entry, 1)]
    if in_json:
        document(
            {
                "path": str(path_in(home)),
                "entries": len(found.entries),
                "mistakes": [{"line": one.line, "text": one.text} for one in found.mistakes],
                "remarks": [{"line": one.line, "text": one.text} for one in found.remarks],
                "never": idle,
            }
        )
    else:
        complain(home, found)
        for number in idle:
            say(f"{path_in(home)}: entry {number} is never fired: its times are past, or quiet")
        if not found.mistakes:
            tell_count(home, len(found.entries))
    if found.mistakes:
        sys.exit(1)


def tell_count(home: Path, count: int) -> None:
    if count or path_in(home).exists():
        show(f"{count} {'entry' if count == 1 else 'entries'}, no mistakes")
    else:
        say(f"there is no {path_in(home)}; docs/cron.md says how to write one")


def path_in(home: Path) -> Path:
    return home / "config" / "crons.toml"


def reading(home: Path) -> "Reading":
    from .watcher import Watcher

    return Watcher(path_in(home)).read()


def complain(home: Path, found: "Reading") -> None:
    def tell(remarks: "Iterable[Remark]") -> None:
        for remark in remarks:
            say(f"{path_in(home)}, {remark}")

    tell(found.mistakes)
    tell(found.remarks)
