"""crabup: the command, its nouns, any service by its name, and how any of them ends."""

import os
import sys
from typing import Any

import click

from . import __version__
from .complaints import complaint
from .packages import pkg
from .programs import KNOWN
from .ps import ps
from .pulling import list_, pull, rm, update
from .screen import one_line, say
from .services import VERBS, service_group

EXAMPLES = """\b
Services:
  NAME start|stop|restart|logs, where NAME is daemon, search, cron,
  telegram, wechat, web, or any component's

\b
Examples:
  crabup pull daemon
  crabup daemon start
  crabup ps
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
            say(f"crabup: {one_line(sentence)}")
            sys.exit(1)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Any word before start, stop, restart or logs is the name of a service."""
        name, *rest = args
        is_service = name in KNOWN or bool(rest and rest[0] in VERBS)
        if name not in self.commands and is_service and not name.startswith("-"):
            return name, service_group(name), rest
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="crabup", message="%(prog)s %(version)s")
def main() -> None:
    """Install crabtalk's programs and packages, and keep its services alive."""


for command in (pull, rm, update, list_, ps, pkg):
    main.add_command(command)
