"""The manual page of `crabtalk`, written from the commands themselves."""

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
is the chat. Where standard input is no terminal, it answers what is piped in.
.PP
It is a client of the daemon
.BR crabtalkd ,
which owns the conversations. Where none runs, one is started; it says so in a line and stays for
next time.
"""

TAIL = """\
.SH EXIT STATUS
.TP
.B 0
Done.
.TP
.B 1
Not done, and standard error says why.
.TP
.B 2
Words it does not know.
.TP
.B 130
Stopped, by Ctrl+C or by somebody else.
.SH ENVIRONMENT
.TP
.B CRABTALK_HOME
The home of the daemon, where no
.B \\-\\-home
is given.
.TP
.B CRABTALK_NO_START
If set, no command starts a daemon, as with
.BR \\-\\-no\\-start .
.TP
.B NO_COLOR
If set, nothing is coloured.
.SH FILES
.TP
.I ~/.crabtalk
The daemon's home: configuration, agents, conversations, logs.
"""


def render_man_page(contexts: Sequence[click.Context]) -> str:
    """`contexts` are those of every command, the first of them that of `crabtalk` itself."""
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
    """As roff leaves it: no hyphens from minus signs, no commands from dots and quotes, and what
    is not ASCII by its number, which needs nobody to guess the encoding."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return f"\\&{text}" if text.startswith((".", "'")) else text
