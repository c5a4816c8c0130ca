"""The screen: how answers are printed, for people and for programs. Knows nothing of answers."""

import json
import re
from collections.abc import Sequence
from typing import Any

import click

# Whatever would command a terminal, or turn its text around.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def show(text: str) -> None:
    click.echo(text)


def document(value: Any) -> None:
    """One JSON document."""
    text = json.dumps(value, ensure_ascii=False)
    click.echo(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def say(sentence: str) -> None:
    """What is no answer."""
    click.echo(plain(sentence), err=True)


def plain(text: str) -> str:
    """On one line, and without control characters."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], " ".join(text.split()))


def table(rows: Sequence[Sequence[str]]) -> str:
    """In columns, as wide as they must be; the last one is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def qr_code(text: str) -> str:
    """For a camera that looks at a terminal, light on dark or dark on light."""
    from io import StringIO

    import segno

    drawn = StringIO()
    segno.make(text, error="l", micro=False).terminal(drawn, compact=True)
    return drawn.getvalue()
