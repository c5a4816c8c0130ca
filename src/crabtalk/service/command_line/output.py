"""The screen: how answers are printed, for people and for programs. Knows nothing of answers.

What agents and strangers wrote cannot steer the terminal: control characters become visible.
"""

import os
import re
import sys
from collections.abc import Sequence
from typing import Any
from unicodedata import east_asian_width

import click

# Of the marks that turn text around, those that reach beyond their own word.
BIDI_CONTROLS = r"\u2028-\u202e\u2066-\u2069"
CONTROL_PATTERN = re.compile(rf"[\x00-\x1f\x7f-\x9f{BIDI_CONTROLS}]")
CONTROL_PATTERN_EXCEPT_LAYOUT = re.compile(
    rf"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{BIDI_CONTROLS}]|\r(?!\n)"
)


def print_output(text: str) -> None:
    click.echo(text, color=has_colour())


def print_json(value: Any) -> None:
    """One JSON document, or one of a stream of them: a line."""
    click.echo(format_json_line(value))


def format_json_line(value: Any) -> str:
    """Without a character that a terminal would obey."""
    import json  # late, as shutil below: a daemon that starts says nothing of the kind

    text = json.dumps(value, ensure_ascii=False)
    return CONTROL_PATTERN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_to_stderr(sentence: str) -> None:
    """What is no answer."""
    click.echo(escape_controls(sentence, layout=True), err=True)


def has_terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def has_colour() -> bool:
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def apply_style(text: str, **style: Any) -> str:
    return click.style(text, **style) if has_colour() else text


def format_count(number: int, noun: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def to_one_line(text: str, most: int | None = None) -> str:
    """Without line breaks and control characters; what is beyond `most` characters is cut."""
    text = escape_controls(" ".join(text.split()))
    return text if most is None or len(text) <= most else f"{text[: most - 1].rstrip()}…"


def escape_controls(text: str, *, layout: bool = False) -> str:
    """With `layout`, tabs and line breaks are left to do what they do."""
    pattern = CONTROL_PATTERN_EXCEPT_LAYOUT if layout else CONTROL_PATTERN
    shown = pattern.sub(lambda found: ascii(found[0])[1:-1], text)
    # Half a character, as names of files may have, no stream would take.
    return shown.encode(errors="backslashreplace").decode()


def get_line_width() -> int:
    """Characters that fit on a line; what is no terminal gets lines for reading."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 100


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """In columns, as wide as they must be; the last one is not padded."""
    widths = [max(map(measure_width, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell + " " * (width - measure_width(cell))
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


def measure_width(text: str) -> int:
    """How many places it takes; East Asian characters take two."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)
