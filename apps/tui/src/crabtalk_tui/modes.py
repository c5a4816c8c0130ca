"""Permission modes: their names, the order in which a key goes through them, and what they allow.

The daemon decides what a mode means for a call. Here are the words for it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from .options import inherited

F = TypeVar("F", bound=Callable[..., Any])

# In the order of Shift+Tab.
MODES = {
    "ask": "reads and harmless commands run, everything else asks first",
    "accept-edits": "file edits run too, other commands ask first",
    "plan": "read-only: nothing is changed",
    "auto": "everything the agent's file allows runs without asking",
}
RISKY = "auto"
MODE_HELP = "What runs unasked: ask, accept-edits, plan or auto."
NO_MODES = "this daemon has no permission modes; start a newer crabtalkd"


def next_mode(mode: str) -> str:
    """Of an unknown mode the next is the first."""
    names = [*MODES]
    return names[(names.index(mode) + 1) % len(names)] if mode in MODES else names[0]


def mode_option(command: F) -> F:
    """--mode, which may also stand before the command."""
    return click.option(
        "--mode",
        type=click.Choice([*MODES]),
        callback=inherited,
        metavar="MODE",
        help=MODE_HELP,
    )(command)
