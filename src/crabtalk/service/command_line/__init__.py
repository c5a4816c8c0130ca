"""A program at a terminal: what it prints, the options it shares with the others, how it ends.

Imports click and nothing of ours, so that `--help` of any program waits for no wire.
"""

from .command_group import CommandGroup
from .options import HomeDirectory, home_option, json_option, verbose_option
from .output import (
    apply_style,
    escape_controls,
    format_count,
    format_json_line,
    format_table,
    get_line_width,
    has_colour,
    has_terminal,
    measure_width,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

__all__ = [
    "CommandGroup",
    "HomeDirectory",
    "apply_style",
    "escape_controls",
    "format_count",
    "format_json_line",
    "format_table",
    "get_line_width",
    "has_colour",
    "has_terminal",
    "home_option",
    "json_option",
    "measure_width",
    "print_json",
    "print_output",
    "print_to_stderr",
    "to_one_line",
    "verbose_option",
]
