"""crabup NAME start, stop, restart, logs: the same commands for all services and platforms."""

import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crabtalk.service.command_line import (
    escape_controls,
    has_terminal,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .errors import CrabupError
from .log_lines import find_log, follow_lines, read_last_lines
from .options import home_option, make_home, resolve_home

if TYPE_CHECKING:
    from .managed_services import ManagedService

VERBS = ("start", "stop", "restart", "logs")
# Seconds. A service that answers, or has lived this long, counts as running.
SETTLED_SECONDS = 1.0
# Seconds that a daemon has to answer its first ping.
ANSWER_TIMEOUT = 15.0
POLL_INTERVAL = 0.02


def build_service_group(name: str) -> click.Group:
    """The commands of the service `name`."""

    def help_of(summary: str, *examples: str) -> str:
        lines = "\n".join(f"  crabup {name} {example}" for example in examples)
        return f"{summary}\n\n\b\nExample{'s' if len(examples) > 1 else ''}:\n{lines}"

    group = click.Group(
        name,
        help=help_of(f"Keep {name} alive, and see how it is.", "start", "logs -f", "stop"),
    )

    @group.command("start", help=help_of(START_HELP.format(name=name), "start"))
    @home_option
    def start_command(given_home: Path | None) -> None:
        start_service(name, resolve_home(given_home))

    @group.command("stop", help=help_of(STOP_HELP.format(name=name), "stop"))
    @home_option
    def stop_command(given_home: Path | None) -> None:
        stop_service(name, resolve_home(given_home))

    @group.command("restart", help=help_of(RESTART_HELP.format(name=name), "restart"))
    @home_option
    def restart_command(given_home: Path | None) -> None:
        restart_service(name, resolve_home(given_home))

    @group.command("logs", help=help_of(LOGS_HELP.format(name=name), "logs", "logs -f -n 5"))
    @click.option("-f", "--follow", "is_followed", is_flag=True, help="Go on until Ctrl+C.")
    @click.option(
        "-n",
        "--lines",
        type=click.IntRange(0, 100_000),
        default=50,
        show_default=True,
        metavar="N",
        help="Lines to begin with.",
    )
    @home_option
    def logs_command(is_followed: bool, lines: int, given_home: Path | None) -> None:
        print_logs(name, resolve_home(given_home), lines, is_followed)

    return group


START_HELP = """Start {name}, now and at every login.

By systemd, launchd or the Task Scheduler. Where none runs, as in containers, a
process of crabup's stays with it and starts it again whenever it ends."""
STOP_HELP = """Stop {name}, and no longer start it at login. What it keeps stays."""
RESTART_HELP = """Stop {name} if it runs, and start it: as it is installed now."""
LOGS_HELP = """Show the end of what {name} had to say."""


def start_service(name: str, home: Path) -> None:
    from .managed_services import find_platform_manager, iterate_managers, plan_service, prepare_log
    from .probes import probe_service

    planned = plan_service(name, home)
    for other in iterate_managers(name, home, find_platform_manager()):
        if other.managed_by != planned.managed_by and other.status().state == "running":
            raise CrabupError(
                f"{name} is kept by {other.manager_name}; "
                f"`crabup {name} restart` hands it to {planned.manager_name}"
            )
    if planned.status().state != "running" and probe_service(name, home).state == "running":
        raise CrabupError(f"{name} runs already, {describe_stray(name, home)} first")
    make_home(home)
    prepare_daemon(planned, home)
    prepare_log(planned.unit)
    ends = get_exit_count(planned)
    planned.manager.start(planned.unit)
    wait_until_running(planned, home, ends)


def stop_service(name: str, home: Path) -> None:
    from crabtalk.service import ComponentPaths, stop_component

    from .managed_services import find_platform_manager, iterate_managers
    from .probes import DAEMON_NAME, probe_service

    managed_services = list(iterate_managers(name, home, find_platform_manager()))
    for managed in managed_services:
        stop_component(managed.unit, ComponentPaths(home, name), managed.manager)
    if name == DAEMON_NAME:
        remove_stale_port_file(home)
    probe = probe_service(name, home)
    if probe.state == "running":
        pid = f" (pid {probe.pid})" if probe.pid else ""
        raise CrabupError(f"{name} still runs{pid}, {describe_stray(name, home)}")
    if probe.state == "stale" and name != DAEMON_NAME:
        ComponentPaths(home, name).port_file.path.unlink(missing_ok=True)
    print_to_stderr(f"{name} is stopped" if managed_services else f"{name} was not started")


def restart_service(name: str, home: Path) -> None:
    from .managed_services import find_platform_manager, iterate_managers, plan_service, prepare_log
    from .probes import probe_service

    planned = plan_service(name, home)  # before anything is stopped
    managed_services = list(iterate_managers(name, home, find_platform_manager()))
    if not managed_services and probe_service(name, home).state == "running":
        raise CrabupError(f"{name} runs already, {describe_stray(name, home)} first")
    for other in managed_services:
        if other.managed_by != planned.managed_by:
            other.manager.stop(other.unit)
    make_home(home)
    prepare_daemon(planned, home)
    prepare_log(planned.unit)
    planned.manager.restart(planned.unit)
    wait_until_running(planned, home)


def describe_stray(name: str, home: Path) -> str:
    """How a service that no manager runs may have been started, and how to end it."""
    from crabtalk.transport import default_home

    from .probes import DAEMON_NAME

    if name != DAEMON_NAME:
        return "started by hand; end it there"
    where = "" if home == default_home() else f" --home {shlex.quote(str(home))}"
    return f"started by hand or by a command that needed it; end it with `crabtalkd stop{where}`"


def print_logs(name: str, home: Path, count: int, is_followed: bool) -> None:
    from crabtalk.service import ComponentPaths

    ComponentPaths(home, name)  # checks the name
    path = find_log(name, home)
    lines, position = read_last_lines(path, count)
    for line in lines:
        print_output(escape_controls(line))
    if is_followed:
        with suppress(KeyboardInterrupt):
            for line in follow_lines(path, position):
                print_output(escape_controls(line))
                sys.stdout.flush()


def prepare_daemon(service: "ManagedService", home: Path) -> None:
    """Ask for what the daemon needs at its first start."""
    from .first_start import list_missing_variables, run_setup
    from .managed_services import SUPERVISED
    from .probes import DAEMON_NAME

    if service.name != DAEMON_NAME:
        return
    run_setup(Path(service.unit.command[0]), home, has_terminal())
    if service.managed_by != SUPERVISED and (names := list_missing_variables(home)):
        print_to_stderr(
            f"config.toml reads {', '.join(names)} from the environment, "
            f"which {service.managed_by} does not pass on; write the key itself into it"
        )


def get_exit_count(service: "ManagedService") -> int:
    """How often the service has ended under its present supervisor."""
    from .supervisor_manager import SupervisorManager

    record = (
        service.manager.find_record() if isinstance(service.manager, SupervisorManager) else None
    )
    return record.exit_count if record is not None and record.has_supervisor() else 0


def wait_until_running(service: "ManagedService", home: Path, ends: int = 0) -> None:
    """Wait until it answers, or has lived for a while. Raises CrabupError if it does neither, or
    has ended more often than `ends`."""
    from .managed_services import SUPERVISED
    from .probes import DAEMON_NAME, probe_service
    from .supervisor_manager import SupervisorManager

    begin = time.monotonic()
    while True:
        status, probe = service.status(), probe_service(service.name, home)
        record = (
            service.manager.find_record()
            if isinstance(service.manager, SupervisorManager)
            else None
        )
        # The supervisor knows how it ended, but may not have noticed yet.
        has_failed = record.exit_count > ends if record is not None else status.state == "failed"
        if has_failed:
            description = record.last_exit if record is not None else "ended"
            raise CrabupError(
                f"{service.name} {description}{describe_last_line(service.name, home)}; "
                f"it is tried again until `crabup {service.name} stop`"
            )
        lived = time.monotonic() - begin
        if probe.state == "running" and status.state == "running":
            break
        if status.state == "running" and service.name != DAEMON_NAME and lived >= SETTLED_SECONDS:
            break
        if lived >= ANSWER_TIMEOUT:
            raise CrabupError(
                f"{service.name} was started, but does not answer; see `crabup {service.name} logs`"
            )
        time.sleep(POLL_INTERVAL)
    pid = probe.pid or status.pid
    until = " until the next reboot" if service.managed_by == SUPERVISED else ""
    print_to_stderr(
        f"{service.name} runs{f' (pid {pid})' if pid else ''}, "
        f"kept by {service.manager_name}{until}"
    )


def describe_last_line(name: str, home: Path) -> str:
    """The last line of a service's log, for an error message."""
    with suppress(CrabupError, OSError):
        lines, _ = read_last_lines(find_log(name, home), 20)
        own_lines = [line for line in lines if line.strip() and "INFO  crabup: " not in line]
        return f": {to_one_line(own_lines[-1], 200)}" if own_lines else ""
    return ""


def remove_stale_port_file(home: Path) -> None:
    """Remove the port file of a daemon that was killed."""
    from crabtalk.transport import RunFiles

    files = RunFiles.for_home(home)
    if files.read_daemon_pid() is None:
        files.port_path.unlink(missing_ok=True)
