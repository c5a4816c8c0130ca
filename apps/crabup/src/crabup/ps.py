"""crabup ps: every service of a home in one view, whoever started it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crabtalk.service.command_line import (
    format_table,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
)

from .errors import CrabupError
from .options import home_option, resolve_home

if TYPE_CHECKING:
    from crabtalk.service import ServiceManager

TABLE_HEAD = ("NAME", "PORT", "STATUS", "PID", "MANAGED-BY")


@dataclass(frozen=True, slots=True)
class ServiceRow:
    name: str
    port: int | None
    status: str
    pid: int | None
    managed_by: str | None

    def to_cells(self) -> tuple[str, ...]:
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
    rows = list_services(resolve_home(given_home))
    if in_json:
        print_json({"services": [asdict(row) for row in rows]})
    elif rows:
        print_output(format_table([TABLE_HEAD, *(row.to_cells() for row in rows)]))
    else:
        print_to_stderr("no service runs here; `crabup daemon start` starts the daemon")


def list_services(home: Path) -> list[ServiceRow]:
    from crabtalk.service import ComponentError, list_port_files

    from .managed_services import find_platform_manager, list_managed_names
    from .probes import DAEMON_NAME

    manager = find_platform_manager()
    names = list_managed_names(home, manager) | {file.name for file in list_port_files(home)}
    rows = []
    for name in [DAEMON_NAME, *sorted(names - {DAEMON_NAME})]:
        try:
            row = inspect_service(name, home, manager)
        except (ComponentError, CrabupError):  # a file whose name no service could have
            row = ServiceRow(name, None, "stale", None, None)
        if row is not None:
            rows.append(row)
    return rows


def inspect_service(name: str, home: Path, manager: "ServiceManager | None") -> ServiceRow | None:
    """None when nobody ever heard of it."""
    from .managed_services import SUPERVISED, iterate_managers
    from .probes import DAEMON_NAME, probe_service
    from .supervisor_manager import SupervisorManager

    answer = probe_service(name, home)
    statuses = [(each.managed_by, each.status()) for each in iterate_managers(name, home, manager)]
    by, status = next(
        ((by, status) for by, status in statuses if status.state == "running"),
        statuses[0] if statuses else (None, None),
    )
    if by == SUPERVISED and (record := SupervisorManager(home, name).find_record()) is not None:
        by = SUPERVISED if record.has_supervisor() else None
    if status is None:
        if answer.state == "absent":
            return None
        return ServiceRow(name, answer.port, answer.state, answer.pid, None)
    if answer.state == "running":
        return ServiceRow(name, answer.port, "running", answer.pid or status.pid, by)
    if status.state == "running":
        # Not everything has a port; what left a stale one is on its way to a new one.
        has_more_to_do = name == DAEMON_NAME or answer.state == "stale"
        word = "starting" if has_more_to_do else "running"
        return ServiceRow(name, None, word, status.pid, by)
    return ServiceRow(name, None, status.state, None, by)
