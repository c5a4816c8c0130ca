"""The command `crabup`: its subcommands, and the commands of any service by its name."""

import click

from crabtalk.service.command_line import CommandGroup

from . import __version__
from .errors import explain_error
from .package_commands import pkg
from .program_commands import list_, pull, rm, update
from .programs import PROGRAMS_BY_NAME
from .ps import ps
from .service_commands import VERBS, build_service_group

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


class CrabupCommandGroup(CommandGroup):
    """A group that also takes the name of any service as a subcommand."""

    def explain_error(self, error: Exception) -> str | None:
        return explain_error(error)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Any word before start, stop, restart or logs is the name of a service."""
        name, *rest = args
        is_service = name in PROGRAMS_BY_NAME or bool(rest and rest[0] in VERBS)
        if name not in self.commands and is_service and not name.startswith("-"):
            return name, build_service_group(name), rest
        return super().resolve_command(ctx, args)


@click.group(
    "crabup",
    cls=CrabupCommandGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="crabup", message="%(prog)s %(version)s")
def main() -> None:
    """Install crabtalk's programs and packages, and keep its services alive."""


for command in (pull, rm, update, list_, ps, pkg):
    main.add_command(command)
