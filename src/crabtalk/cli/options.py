"""Options that several commands share, and the connection to the daemon they name."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from crabtalk.service.command_line import HomeDirectory, print_to_stderr

if TYPE_CHECKING:
    from crabtalk.client import SyncClient

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_AGENT = "crab"  # every home has it from its first start
NO_START_KEY = f"{__package__}.no_start"
# Descriptions of the permission modes, in the order of Shift+Tab. The daemon decides what a mode
# means for a call.
MODES = {
    "ask": "reads and harmless commands run, everything else asks first",
    "accept-edits": "file edits run too, other commands ask first",
    "plan": "read-only: nothing is changed",
    "auto": "everything the agent's file allows runs without asking",
}
RISKY_MODE = "auto"
MODE_HELP = "What runs unasked: ask, accept-edits, plan or auto."
MODES_UNSUPPORTED = "this daemon has no permission modes; start a newer crabtalkd"


def inherit_from_root(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Use the value given before the command, if the command has none of its own."""
    return ctx.find_root().params.get(param.name or "") if value is None else value


def forbid_start(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        ctx.meta[NO_START_KEY] = True
    return value


no_start_option = click.option(
    "--no-start",
    is_flag=True,
    envvar="CRABTALK_NO_START",
    callback=forbid_start,
    help="Start no daemon where none runs; for any command.",
)


def home_option(command: F) -> F:
    """Add --home and a hidden --no-start, which only the help of `crabtalk` itself lists."""
    command = click.option(
        "--no-start", is_flag=True, hidden=True, expose_value=False, callback=forbid_start
    )(command)
    return click.option(
        "--home",
        type=HomeDirectory(),
        metavar="DIR",
        callback=inherit_from_root,
        help="The daemon's directory  [default: $CRABTALK_HOME, else ~/.crabtalk]",
    )(command)


def get_next_mode(mode: str) -> str:
    """Return the mode after this one; the first one for an unknown mode."""
    names = [*MODES]
    return names[(names.index(mode) + 1) % len(names)] if mode in MODES else names[0]


def mode_option(command: F) -> F:
    """Add --mode, which may also be given before the command."""
    return click.option(
        "--mode",
        type=click.Choice([*MODES]),
        callback=inherit_from_root,
        metavar="MODE",
        help=MODE_HELP,
    )(command)


@contextmanager
def connect_daemon(home: Path | None) -> Iterator["SyncClient"]:
    """Connect to the daemon in `home`; start it if none runs, unless --no-start was given."""
    from crabtalk.client import DaemonNotRunningError, connect_sync

    with ExitStack() as stack:
        try:
            client = stack.enter_context(connect_sync(home=home, client="crabtalk"))
        except DaemonNotRunningError:
            if not may_start():
                raise
            from .daemon_startup import ensure_daemon

            ensure_daemon(home, start=True, say=print_to_stderr)
            client = stack.enter_context(connect_sync(home=home, client="crabtalk"))
        yield client


def format_command(command: str, agent: str, sender: str, home: Path | None) -> str:
    """Return the command line a person types to run `command` on that conversation."""
    words = ["crabtalk", *command.split(), agent]
    words += ["--sender", sender] if sender else []
    words += ["--home", str(home)] if home is not None else []
    return shlex.join(words)


def may_start() -> bool:
    ctx = click.get_current_context(silent=True)
    return ctx is None or NO_START_KEY not in ctx.meta
