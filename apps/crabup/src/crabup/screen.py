"""The screen: how answers are printed, for people and for programs. Knows nothing of answers.

What strangers wrote (logs, manifests, scripts) cannot steer the terminal: control characters
become visible.
"""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

from .complaints import CommandError

# Of the marks that turn text around, those that reach beyond their own word.
TURNING = r"\u2028-\u202e\u2066-\u2069"
CONTROL = re.compile(rf"[\x00-\x1f\x7f-\x9f{TURNING}]")
CONTROL_BUT_LAYOUT = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{TURNING}]|\r(?!\n)")


def show(text: str) -> None:
    click.echo(text)


def document(value: Any) -> None:
    """One JSON document: a line."""
    text = json.dumps(value, ensure_ascii=False)
    click.echo(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def say(sentence: str) -> None:
    """What is no answer."""
    click.echo(visible(sentence, layout=True), err=True)


def has_terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agree(question: str, *, without: str) -> None:
    """Goes on if the answer is yes. `without` is what to do where nobody can be asked."""
    if not has_terminal():
        raise CommandError(f"nothing was changed; without a terminal to ask on, {without}")
    if not click.confirm(question, err=True):
        raise CommandError("nothing was changed; say yes when it suits you")


def one_line(text: str, most: int | None = None) -> str:
    """Without line breaks and control characters; what is beyond `most` characters is cut."""
    text = visible(" ".join(text.split()))
    return text if most is None or len(text) <= most else f"{text[: most - 1].rstrip()}…"


def visible(text: str, *, layout: bool = False) -> str:
    """With `layout`, tabs and line breaks are left to do what they do."""
    pattern = CONTROL_BUT_LAYOUT if layout else CONTROL
    shown = pattern.sub(lambda found: ascii(found[0])[1:-1], text)
    # Half a character, as names of files may have, no stream would take.
    return shown.encode(errors="backslashreplace").decode()


def table(rows: Sequence[Sequence[str]]) -> str:
    """In columns, as wide as they must be; the last one is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
