"""Agreement: what a person should have seen is done when they said yes, or said so beforehand."""

import click

from crabtalk.service.command_line import has_terminal

from .errors import CrabupError


def confirm_change(question: str, *, without: str) -> None:
    """Goes on if the answer is yes. `without` is what to do where nobody can be asked."""
    if not has_terminal():
        raise CrabupError(f"nothing was changed; without a terminal to ask on, {without}")
    if not click.confirm(question, err=True):
        raise CrabupError("nothing was changed; say yes when it suits you")
