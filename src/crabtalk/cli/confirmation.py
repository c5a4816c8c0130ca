"""Confirmation for commands that cannot be undone: a yes at the terminal, or --yes."""

import sys

import click

from .errors import CommandError

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def require_confirmation(question: str, yes: bool) -> None:
    """Raise CommandError unless the person said yes; the caller has changed nothing by then."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("nothing was changed; without a terminal to ask on, say --yes")
    if not click.confirm(question, err=True):
        raise CommandError("nothing was changed")
