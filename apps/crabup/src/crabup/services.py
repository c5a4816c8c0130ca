"""crabup NAME start, stop, restart, logs: the same words for every service on every platform."""

import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crabtalk.component.command import has_terminal, one_line, say, show, visible

from .complaints import CommandError
from .log_lines import follow, last, log_of
from .options import home_at, home_option, make_home

if TYPE_CHECKING:
    from .keeping import Kept

VERBS = ("start", "stop", "restart", "logs")
# A service that has lived so long, or answers, is taken to run.
SETTLED = 1.0
# What a daemon gets to answer its first ping.
PATIENCE = 15.0
PAUSE = 0.02


def service_group(name: str) -> click.Group:
    """The commands about the service `name`."""

    def help_of(summary: str, *examples: str) -> str:
        lines = "\n".join(f"  crabup {name} {example}" for example in examples)
        return f"{summary}\n\n\b\nExample{'s' if len(examples) > 1 else ''}:\n{lines}"

    group = click.Group(
        name,
        help=help_of(f"Keep {name} alive, and see how it is.", "start", "logs -f", "stop"),
    )

    @group.command("start", help=help_of(START.format(name=name), "start"))
    @home_option
    def start_command(given_home: Path | None) -> None:
        start(name, home_at(given_home))

    @group.command("stop", help=help_of(STOP.format(name=name), "stop"))
    @home_option
    def stop_command(given_home: Path | None) -> None:
        stop(name, home_at(given_home))

    @group.command("restart", help=help_of(RESTART.format(name=name), "restart"))
    @home_option
    def restart_command(given_home: Path | None) -> None:
        restart(name, home_at(given_home))

    @group.command("logs", help=help_of(LOGS.format(name=name), "logs", "logs -f -n 5"))
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
        logs(name, home_at(given_home), lines, is_followed)

    return group


START = """Start {name}, now and at every login.

By systemd, launchd or the Task Scheduler. Where none runs, as in containers, a
process of crabup's stays with it and starts it again whenever it ends."""
STOP = """Stop {name}, and no longer start it at login. What it keeps stays."""
RESTART = """Stop {name} if it runs, and start it: as it is installed now."""
LOGS = """Show the end of what {name} had to say."""


def start(name: str, home: Path) -> None:
    from .keeping import keepers, platform_manager, ready_log, to_be_kept
    from .probing import probe

    kept = to_be_kept(name, home)
    for other in keepers(name, home, platform_manager()):
        if other.by != kept.by and other.status().state == "running":
            raise CommandError(
                f"{name} is kept by {other.keeper}; "
                f"`crabup {name} restart` hands it to {kept.keeper}"
            )
    if kept.status().state != "running" and probe(name, home).state == "running":
        raise CommandError(f"{name} runs already, {stray(name, home)} first")
    make_home(home)
    prepare(kept, home)
    ready_log(kept.unit)
    ends = ends_of(kept)
    kept.manager.start(kept.unit)
    see_it_run(kept, home, ends)


def stop(name: str, home: Path) -> None:
    from crabtalk.component import Place, stop_component

    from .keeping import keepers, platform_manager
    from .probing import DAEMON, probe

    found = list(keepers(name, home, platform_manager()))
    for kept in found:
        stop_component(kept.unit, Place(home, name), kept.manager)
    if name == DAEMON:
        forget_daemon(home)
    answer = probe(name, home)
    if answer.state == "running":
        pid = f" (pid {answer.pid})" if answer.pid else ""
        raise CommandError(f"{name} still runs{pid}, {stray(name, home)}")
    if answer.state == "stale" and name != DAEMON:
        Place(home, name).port.path.unlink(missing_ok=True)
    say(f"{name} is stopped" if found else f"{name} was not started")


def restart(name: str, home: Path) -> None:
    from .keeping import keepers, platform_manager, ready_log, to_be_kept
    from .probing import probe

    kept = to_be_kept(name, home)  # before anything is stopped
    found = list(keepers(name, home, platform_manager()))
    if not found and probe(name, home).state == "running":
        raise CommandError(f"{name} runs already, {stray(name, home)} first")
    for other in found:
        if other.by != kept.by:
            other.manager.stop(other.unit)
    make_home(home)
    prepare(kept, home)
    ready_log(kept.unit)
    kept.manager.restart(kept.unit)
    see_it_run(kept, home)


def stray(name: str, home: Path) -> str:
    """Who may have started what nobody keeps, and how it is ended. A question starts a daemon."""
    from crabtalk.transport import default_home

    from .probing import DAEMON

    if name != DAEMON:
        return "started by hand; end it there"
    where = "" if home == default_home() else f" --home {shlex.quote(str(home))}"
    return f"started by hand or by a command that needed it; end it with `crabtalkd stop{where}`"


def logs(name: str, home: Path, count: int, is_followed: bool) -> None:
    from crabtalk.component import Place

    Place(home, name)  # or it is no name
    path = log_of(name, home)
    lines, position = last(path, count)
    for line in lines:
        show(visible(line))
    if is_followed:
        with suppress(KeyboardInterrupt):
            for line in follow(path, position):
                show(visible(line))
                sys.stdout.flush()


def prepare(kept: "Kept", home: Path) -> None:
    """What a first start of the daemon wants to know."""
    from .first_start import missing_variables, set_up
    from .keeping import OURS
    from .probing import DAEMON

    if kept.name != DAEMON:
        return
    set_up(Path(kept.unit.command[0]), home, has_terminal())
    if kept.by != OURS and (names := missing_variables(home)):
        say(
            f"config.toml reads {', '.join(names)} from the environment, which {kept.by} does not "
            "pass on; write the key itself into it"
        )


def ends_of(kept: "Kept") -> int:
    """How often it has ended under the supervisor it has."""
    from .supervised import Supervised

    record = kept.manager.record() if isinstance(kept.manager, Supervised) else None
    return record.ends if record is not None and record.has_supervisor() else 0


def see_it_run(kept: "Kept", home: Path, ends: int = 0) -> None:
    """Waits until it answers, or has lived for a while. Raises CommandError if it does neither,
    or has ended more often than `ends`."""
    from .keeping import OURS
    from .probing import DAEMON, probe
    from .supervised import Supervised

    begin = time.monotonic()
    while True:
        status, answer = kept.status(), probe(kept.name, home)
        record = kept.manager.record() if isinstance(kept.manager, Supervised) else None
        # Its supervisor is the one to know how it ended, and may not have noticed yet.
        has_failed = record.ends > ends if record is not None else status.state == "failed"
        if has_failed:
            how = record.last if record is not None else "ended"
            raise CommandError(
                f"{kept.name} {how}{last_words(kept.name, home)}; it is tried again until "
                f"`crabup {kept.name} stop`"
            )
        lived = time.monotonic() - begin
        if answer.state == "running" and status.state == "running":
            break
        if status.state == "running" and kept.name != DAEMON and lived >= SETTLED:
            break
        if lived >= PATIENCE:
            raise CommandError(
                f"{kept.name} was started, but does not answer; see `crabup {kept.name} logs`"
            )
        time.sleep(PAUSE)
    pid = answer.pid or status.pid
    until = " until the next reboot" if kept.by == OURS else ""
    say(f"{kept.name} runs{f' (pid {pid})' if pid else ''}, kept by {kept.keeper}{until}")


def last_words(name: str, home: Path) -> str:
    """What a service said last, if its log has anything."""
    with suppress(CommandError, OSError):
        lines, _ = last(log_of(name, home), 20)
        own = [line for line in lines if line.strip() and "INFO  crabup: " not in line]
        return f": {one_line(own[-1], 200)}" if own else ""
    return ""


def forget_daemon(home: Path) -> None:
    """The port file of a daemon that was too dead to remove it."""
    from crabtalk.transport import RunFiles

    files = RunFiles.of(home)
    if files.holder() is None:
        files.port.unlink(missing_ok=True)
