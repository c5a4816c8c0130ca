"""crabup ps: every service of a home in one view, whoever started it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crabtalk.component.command import document, json_option, say, show, table

from .complaints import CommandError
from .options import home_at, home_option

if TYPE_CHECKING:
    from crabtalk.component import Manager

HEAD = ("NAME", "PORT", "STATUS", "PID", "MANAGED-BY")


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    port: int | None
    status: str
    pid: int | None
    managed_by: str | None

    def cells(self) -> tuple[str, ...]:
        values = (self.name, self.port, self.status, self.pid, self.managed_by)
        return tuple("-" if value is None else str(value) for value in values)


@click.command()
@home_option
@json_option
def ps(given_home: Path | None, in_json: bool) -> None:
    """Show all services: where they listen, how they are, who keeps them.

    Ports are tried and service managers asked. STATUS is running, starting (its
    process lives, and does not answer yet), failed, stopped, or stale: it left a
    port file and is gone. What is supervised does not come back after a reboot.

    \b
    Examples:
      crabup ps
      crabup ps --json
    """
    rows = survey(home_at(given_home))
    if in_json:
        document({"services": [asdict(row) for row in rows]})
    elif rows:
        show(table([HEAD, *(row.cells() for row in rows)]))
    else:
        say("no service runs here; `crabup daemon start` starts the daemon")


def survey(home: Path) -> list[Row]:
    from crabtalk.component import ComponentError, port_files

    from .keeping import kept_names, platform_manager
    from .probing import DAEMON

    manager = platform_manager()
    names = kept_names(home, manager) | {file.name for file in port_files(home)}
    rows = []
    for name in [DAEMON, *sorted(names - {DAEMON})]:
        try:
            row = look_at(name, home, manager)
        except (ComponentError, CommandError):  # a file whose name no service could have
            row = Row(name, None, "stale", None, None)
        if row is not None:
            rows.append(row)
    return rows


def look_at(name: str, home: Path, manager: "Manager | None") -> Row | None:
    """None when nobody ever heard of it."""
    from .keeping import OURS, keepers
    from .probing import DAEMON, probe
    from .supervised import Supervised

    answer = probe(name, home)
    statuses = [(each.by, each.status()) for each in keepers(name, home, manager)]
    by, status = next(
        ((by, status) for by, status in statuses if status.state == "running"),
        statuses[0] if statuses else (None, None),
    )
    if by == OURS and (record := Supervised(home, name).record()) is not None:
        by = OURS if record.has_supervisor() else None
    if status is None:
        if answer.state == "absent":
            return None
        return Row(name, answer.port, answer.state, answer.pid, None)
    if answer.state == "running":
        return Row(name, answer.port, "running", answer.pid or status.pid, by)
    if status.state == "running":
        # Not everything has a port; what left a stale one is on its way to a new one.
        has_more_to_do = name == DAEMON or answer.state == "stale"
        word = "starting" if has_more_to_do else "running"
        return Row(name, None, word, status.pid, by)
    return Row(name, None, status.state, None, by)
