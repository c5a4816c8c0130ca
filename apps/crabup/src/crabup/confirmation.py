"""Asks a person to confirm a change."""

import click

from crabtalk.service.command_line import has_terminal

from .errors import CrabupError


def confirm_change(question: str, *, hint: str) -> None:
    """Return if the answer is yes. `hint` says what to do if there is no terminal to ask on."""
    if not has_terminal():
        raise CrabupError(f"nothing was changed; without a terminal to ask on, {hint}")
    if not click.confirm(question, err=True):
        raise CrabupError("nothing was changed; say yes when it suits you")
