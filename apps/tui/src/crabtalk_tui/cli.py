"""crabtalk: the command, its nouns, and how any of them ends."""

import os
import sys
from typing import Any

import click

from . import __version__
from .complaints import complaint
from .events import events
from .memory import memory
from .screen import one_line, say
from .search import search

EXAMPLES = """\b
Examples:
  crabtalk memory search crab tide tables
  crabtalk search "the lighthouse" --since 7d
  crabtalk events watch
"""


class Commands(click.Group):
    """Ends in 0, in 1 with a sentence, in 2 for words it does not know, in 130 for Ctrl+C."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever read our output has seen enough
            # What is still buffered goes nowhere, instead of failing when the interpreter flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except (KeyboardInterrupt, click.Abort):
            sys.exit(130)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception as error:
            sentence = complaint(error)
            if sentence is None:
                raise
            say(f"crabtalk: {one_line(sentence)}")
            sys.exit(1)


@click.group(
    cls=Commands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="crabtalk", message="%(prog)s %(version)s")
def main() -> None:
    """What your agents remember, what was said to them, and what they do."""


for command in (memory, search, events):
    main.add_command(command)
