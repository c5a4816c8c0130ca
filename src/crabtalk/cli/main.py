"""The `crabtalk` command: its subcommands and options.

A subcommand's module is imported only when it is called, so that `--help` is fast.
"""

import gc
import sys
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from crabtalk import __version__
from crabtalk.service.command_line import CommandGroup, HomeDirectory

from .errors import explain_error
from .options import MODE_HELP, MODES, no_start_option

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# A description and the place of each command. The help shows them in two columns, in this order.
COMMANDS = {
    "ask": ("Ask, print the answer", "ask:ask"),
    "conversations": ("What was said so far", "conversations:conversations"),
    "archives": ("What was compacted", "runs:archives"),
    "search": ("Find what was said", "search:search"),
    "compact": ("Archive what was said", "runs:compact"),
    "kill": ("Stop a turn", "runs:kill"),
    "approvals": ("Calls that wait for a yes", "approvals:approvals"),
    "memory": ("What agents remember", "memory:memory"),
    "events": ("What sets agents off", "events:events"),
    "agents": ("Who there is to talk to", "agents:agents"),
    "models": ("Which model answers", "models:models"),
    "skills": ("What agents know to do", "skills:skills"),
    "mcp": ("Servers agents carry", "mcps:mcp"),
    "stats": ("How the daemon is", "stats:stats"),
    "reload": ("Read its files anew", "stats:reload"),
    "doctor": ("What is wrong, and why", "doctor:doctor"),
    "completions": ("For your shell", "completion:completions"),
}
TWO_COLUMN_WIDTH = 78  # terminal columns that two columns of commands need

EXAMPLES = 'Example: git diff | crabtalk ask "What does this change?"'


class CrabtalkCommands(CommandGroup):
    """A group whose commands are listed in COMMANDS and imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name][1].split(":")
        command: click.Command = getattr(import_module(f"{__package__}.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # the base class has no suggestions
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, description) for name, (description, _) in COMMANDS.items()]
        with formatter.section("Commands"):
            if formatter.width < TWO_COLUMN_WIDTH:
                formatter.write_dl(rows)
                return
            half = -(-len(rows) // 2)
            for left, right in zip_longest(rows[:half], rows[half:], fillvalue=("", "")):
                line = f"  {left[0]:<14} {left[1]:<27}{right[0]:<12} {right[1]}"
                formatter.write(f"{line.rstrip()}\n")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[Any]]":
        from click.shell_completion import CompletionItem

        items: list[CompletionItem[Any]] = [
            CompletionItem(name, help=description)
            for name, (description, _) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        # The group's own method would import every command for its help.
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def explain_error(self, error: Exception) -> str | None:
        return explain_error(error)


@click.group(
    "crabtalk",
    cls=CrabtalkCommands,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND] [ARGS]...",
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--agent", metavar="NAME", help="Whom to talk to  [default: crab]")
@click.option("--sender", metavar="NAME", help="As whom  [default: user]")
@click.option(
    "--home",
    type=HomeDirectory(),
    metavar="DIR",
    help="The home  [default: $CRABTALK_HOME, else ~/.crabtalk]",
)
@click.option("--mode", type=click.Choice([*MODES]), metavar="MODE", help=MODE_HELP)
@no_start_option
# Hidden so that the help fits a screen: people know this option anyway.
@click.version_option(
    __version__, prog_name="crabtalk", message="%(prog)s %(version)s", hidden=True
)
@click.pass_context
def main(
    ctx: click.Context,
    agent: str | None,
    sender: str | None,
    home: Path | None,
    mode: str | None,
    no_start: bool,
) -> None:
    """Talk with your agents: alone it is the chat, or answers what is piped in."""
    if ctx.invoked_subcommand is not None:
        return
    from .message_input import has_terminal

    if has_terminal():
        run_chat(home, agent, sender or "", start=not no_start, mode=mode or "")
    from .ask import ask

    ctx.invoke(ask, agent=agent, sender=sender, home=home, mode=mode)


def run_chat(
    home: Path | None, agent: str | None, sender: str, *, start: bool, mode: str
) -> NoReturn:
    # Imported objects live on: a garbage collection would take 10 ms and find none.
    gc.disable()
    from crabtalk.chat.app import run_chat

    gc.freeze()
    gc.enable()
    sys.exit(run_chat(home=home, agent=agent, sender=sender, start=start, mode=mode))
