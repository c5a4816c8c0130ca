"""Terminal output, for people and for programs: tables, JSON lines, styles. Knows no commands.

Text of agents and strangers cannot control the terminal: control characters become visible.
"""

import os
import re
import sys
from collections.abc import Sequence
from typing import Any
from unicodedata import east_asian_width

import click

# Of the characters that change the text direction, those that reach beyond their own word.
BIDI_CONTROLS = r"\u2028-\u202e\u2066-\u2069"
CONTROL_PATTERN = re.compile(rf"[\x00-\x1f\x7f-\x9f{BIDI_CONTROLS}]")
CONTROL_PATTERN_EXCEPT_LAYOUT = re.compile(
    rf"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{BIDI_CONTROLS}]|\r(?!\n)"
)


def print_output(text: str) -> None:
    click.echo(text, color=has_colour())


def print_json(value: Any) -> None:
    """Print one JSON document, or one line of a JSON stream."""
    click.echo(format_json_line(value))


def format_json_line(value: Any) -> str:
    """JSON in which control characters are escaped."""
    import json  # late, as shutil below: a daemon that starts does not need it

    text = json.dumps(value, ensure_ascii=False)
    return CONTROL_PATTERN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_to_stderr(sentence: str) -> None:
    """Print a message that is not the command's output, such as a hint or an error."""
    click.echo(escape_controls(sentence, layout=True), err=True)


def has_terminal() -> bool:
    """Whether there is a person to ask."""
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
    """Remove line breaks and control characters, and cut the text to `most` characters."""
    text = escape_controls(" ".join(text.split()))
    return text if most is None or len(text) <= most else f"{text[: most - 1].rstrip()}…"


def escape_controls(text: str, *, layout: bool = False) -> str:
    """Make control characters visible. With `layout`, tabs and line breaks are left alone."""
    pattern = CONTROL_PATTERN_EXCEPT_LAYOUT if layout else CONTROL_PATTERN
    escaped = pattern.sub(lambda match: ascii(match[0])[1:-1], text)
    # Lone surrogates, which file names can have, cannot be encoded in UTF-8.
    return escaped.encode(errors="backslashreplace").decode()


def get_line_width() -> int:
    """Characters that fit on a line; 100 if the output is not a terminal."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 100


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Align the columns with spaces; the last column is not padded."""
    widths = [max(map(measure_width, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell + " " * (width - measure_width(cell))
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


def measure_width(text: str) -> int:
    """Terminal columns of a text; East Asian characters take two."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)
