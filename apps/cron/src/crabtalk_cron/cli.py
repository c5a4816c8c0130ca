"""The command `crabtalk-cron` and its subcommands."""

import asyncio
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crabtalk.service.command_line import (
    CommandGroup,
    format_table,
    home_option,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
    verbose_option,
)

from . import __version__

if TYPE_CHECKING:
    from .crons_file import CronsFile, FileRemark

PROGRAM_NAME = "crabtalk-cron"
EXAMPLES = """\b
Examples:
  crabtalk-cron check
  crabtalk-cron next -n 3
  crabtalk-cron run
"""


class CronCommandGroup(CommandGroup):
    def explain_error(self, error: Exception) -> str | None:
        from crabtalk.service import ComponentError

        return str(error) if isinstance(error, ComponentError | OSError) else None


@click.group(
    PROGRAM_NAME,
    cls=CronCommandGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name=PROGRAM_NAME, message="%(prog)s %(version)s")
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
    from crabtalk.service import ComponentPaths, start_log
    from crabtalk.transport import remove_stale_temporary_files

    paths = ComponentPaths(home, "cron")
    with paths.hold_lock():
        start_log(paths.log_path, verbose=verbose)
        remove_stale_temporary_files(home / "config")
        asyncio.run(run_until_stopped(home))


async def run_until_stopped(home: Path) -> None:
    from .runner import CronRunner

    running = asyncio.ensure_future(CronRunner(home).run())
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
def print_next_times(count: int, home: Path, in_json: bool) -> None:
    """Print the next times of every entry.

    Quiet hours are left out. Each time is in the zone of its entry.

    \b
    Examples:
      crabtalk-cron next
      crabtalk-cron next -n 5 --json
    """
    from .forecast import build_rows, list_next_times, to_json

    crons = read_crons_file(home)
    report_problems(home, crons)
    times = [(entry, list_next_times(entry, count)) for entry in crons.entries]
    if in_json:
        print_json({"entries": [to_json(entry, moments) for entry, moments in times]})
    elif times:
        print_output(
            format_table([row for entry, moments in times for row in build_rows(entry, moments)])
        )
    else:
        print_to_stderr(
            f"there are no entries in {crons_path(home)}; docs/cron.md says how to write one"
        )
    if crons.mistakes:
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
    from .forecast import list_next_times

    crons = read_crons_file(home)
    idle = [entry.id for entry in crons.entries if not list_next_times(entry, 1)]
    if in_json:
        print_json(
            {
                "path": str(crons_path(home)),
                "entries": len(crons.entries),
                "mistakes": [
                    {"line": remark.line, "text": remark.text} for remark in crons.mistakes
                ],
                "remarks": [{"line": remark.line, "text": remark.text} for remark in crons.remarks],
                "never": idle,
            }
        )
    else:
        report_problems(home, crons)
        for number in idle:
            print_to_stderr(
                f"{crons_path(home)}: entry {number} is never fired: its times are past, or quiet"
            )
        if not crons.mistakes:
            report_count(home, len(crons.entries))
    if crons.mistakes:
        sys.exit(1)


def report_count(home: Path, count: int) -> None:
    if count or crons_path(home).exists():
        print_output(f"{count} {'entry' if count == 1 else 'entries'}, no mistakes")
    else:
        print_to_stderr(f"there is no {crons_path(home)}; docs/cron.md says how to write one")


def crons_path(home: Path) -> Path:
    return home / "config" / "crons.toml"


def read_crons_file(home: Path) -> "CronsFile":
    from .file_watcher import CronsFileWatcher

    return CronsFileWatcher(crons_path(home)).read_file()


def report_problems(home: Path, crons: "CronsFile") -> None:
    def print_remarks(remarks: "Iterable[FileRemark]") -> None:
        for remark in remarks:
            print_to_stderr(f"{crons_path(home)}, {remark}")

    print_remarks(crons.mistakes)
    print_remarks(crons.remarks)
