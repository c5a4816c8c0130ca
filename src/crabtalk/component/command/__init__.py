"""A program at a terminal: what it prints, the options it shares with the others, how it ends.

Imports click and nothing of ours, so that `--help` of any program waits for no wire.
"""

from .ending import Commands
from .options import HomeDirectory, home_option, json_option, verbose_option
from .screen import (
    cells,
    counted,
    document,
    has_colour,
    has_terminal,
    json_line,
    line_width,
    one_line,
    say,
    show,
    styled,
    table,
    visible,
)

__all__ = [
    "Commands",
    "HomeDirectory",
    "cells",
    "counted",
    "document",
    "has_colour",
    "has_terminal",
    "home_option",
    "json_line",
    "json_option",
    "line_width",
    "one_line",
    "say",
    "show",
    "styled",
    "table",
    "verbose_option",
    "visible",
]
