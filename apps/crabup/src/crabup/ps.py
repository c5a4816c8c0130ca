"""crabup ps: all services of a home in one table, however they were started."""

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
        except (ComponentError, CrabupError):  # a file with an invalid service name
            row = ServiceRow(name, None, "stale", None, None)
        if row is not None:
            rows.append(row)
    return rows


def inspect_service(name: str, home: Path, manager: "ServiceManager | None") -> ServiceRow | None:
    """None if neither a port file nor a manager knows the service."""
    from .managed_services import SUPERVISED, iterate_managers
    from .probes import DAEMON_NAME, probe_service
    from .supervisor_manager import SupervisorManager

    probe = probe_service(name, home)
    statuses = [
        (managed.managed_by, managed.status()) for managed in iterate_managers(name, home, manager)
    ]
    managed_by, status = next(
        ((managed_by, status) for managed_by, status in statuses if status.state == "running"),
        statuses[0] if statuses else (None, None),
    )
    if (
        managed_by == SUPERVISED
        and (record := SupervisorManager(home, name).find_record()) is not None
    ):
        managed_by = SUPERVISED if record.has_supervisor() else None
    if status is None:
        if probe.state == "absent":
            return None
        return ServiceRow(name, probe.port, probe.state, probe.pid, None)
    if probe.state == "running":
        return ServiceRow(name, probe.port, "running", probe.pid or status.pid, managed_by)
    if status.state == "running":
        # Not every service has a port. A stale port file means that a new one is on its way.
        is_starting = name == DAEMON_NAME or probe.state == "stale"
        word = "starting" if is_starting else "running"
        return ServiceRow(name, None, word, status.pid, managed_by)
    return ServiceRow(name, None, status.state, None, managed_by)
