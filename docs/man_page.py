"""Render the manual page of `crabtalk` from its click commands."""

import re
from collections.abc import Iterator, Sequence
from inspect import cleandoc

import click

from crabtalk import __version__

MAN_PAGE = "man/crabtalk.1"

HEAD = f"""\
.\\" Written by docs/command_help.py; change the commands, not this page.
.TH CRABTALK 1 "" "crabtalk {__version__}" "crabtalk"
.SH NAME
crabtalk \\- talk with your agents, in the terminal and in scripts
.SH SYNOPSIS
.B crabtalk
.RI [ OPTIONS ]
.RI [ COMMAND " [" ARGS ]...]
"""

DESCRIPTION = """\
.SH DESCRIPTION
Without a command
.B crabtalk
opens the chat. If standard input is not a terminal, it answers the piped text.
.PP
It is a client of the daemon
.BR crabtalkd ,
which owns the conversations. If no daemon runs, the command starts one, says so in a line, and
leaves it running for next time.
"""

TAIL = """\
.SH EXIT STATUS
.TP
.B 0
Success.
.TP
.B 1
Failure, with the reason on standard error.
.TP
.B 2
Wrong usage.
.TP
.B 130
Stopped by Ctrl+C or by another client.
.SH ENVIRONMENT
.TP
.B CRABTALK_HOME
The home of the daemon, unless
.B \\-\\-home
is given.
.TP
.B CRABTALK_NO_START
If set, no command starts a daemon, as with
.BR \\-\\-no\\-start .
.TP
.B NO_COLOR
If set, the output has no colours.
.SH FILES
.TP
.I ~/.crabtalk
The daemon's home: configuration, agents, conversations, logs.
"""


def render_man_page(contexts: Sequence[click.Context]) -> str:
    """Render the page. `contexts` has one context for each command, first that of `crabtalk`."""
    root, *rest = contexts
    lines = [HEAD + DESCRIPTION + ".SH OPTIONS", *render_options(root), ".SH COMMANDS"]
    for context in rest:
        lines += render_section(context)
    return "\n".join(lines) + "\n" + TAIL


def render_section(context: click.Context) -> Iterator[str]:
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {escape_roff(f'{context.command_path} {usage}')}"
    for number, paragraph in enumerate(render_paragraphs(command.help or "")):
        if number:
            yield ".PP"
        yield paragraph
    yield from render_options(context)


def render_paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", cleandoc(text)):
        is_as_it_is, _, rest = paragraph.strip().partition("\b\n")
        if is_as_it_is:
            yield escape_roff(" ".join(paragraph.split()))
        else:
            yield "\n".join([".nf", *(escape_roff(line) for line in rest.splitlines()), ".fi"])


def render_options(context: click.Context) -> Iterator[str]:
    for option in context.command.params:
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            names, text = record
            yield f".TP\n.B {escape_roff(names)}\n{escape_roff(text)}"


def escape_roff(text: str) -> str:
    """Escape text so that roff prints it unchanged: minus signs stay minus signs, leading dots and
    quotes are no commands, and other characters than ASCII are written as code points, which do
    not depend on the encoding."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return f"\\&{text}" if text.startswith((".", "'")) else text
