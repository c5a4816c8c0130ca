"""Agreement: what cannot be undone is done when somebody at a terminal said yes, or said --yes."""

import sys

import click

from .errors import CommandError

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def require_confirmation(question: str, yes: bool) -> None:
    """Raises CommandError, for nothing is done, unless there is a yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("nothing was changed; without a terminal to ask on, say --yes")
    if not click.confirm(question, err=True):
        raise CommandError("nothing was changed")
