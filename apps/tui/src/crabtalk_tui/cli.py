"""crabtalk: the command, what it can be told to do, and how any of it ends.

A command's module is imported when the command is named: whoever wants help waits for nothing else.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from . import __version__
from .complaints import complaint
from .options import HomeDirectory, no_start_option
from .screen import one_line, say

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# What each is for, and where it is. The help shows them in two columns, in this order.
COMMANDS = {
    "ask": ("Ask, print the answer", "ask:ask"),
    "conversations": ("What was said so far", "conversations:conversations"),
    "archives": ("What was compacted", "runs:archives"),
    "search": ("Find what was said", "search:search"),
    "compact": ("Archive what was said", "runs:compact"),
    "kill": ("Stop a turn", "runs:kill"),
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
WIDE = 78  # columns that two columns of commands need

EXAMPLES = """\b
Example:
  git diff | crabtalk ask "What does this change?"
"""


class Commands(click.Group):
    """Ends in 0, in 1 with a sentence, in 2 for words it does not know, in 130 for Ctrl+C."""

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
        except click.NoSuchCommand as error:  # it knows of none to suggest
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, what) for name, (what, _) in COMMANDS.items()]
        with formatter.section("Commands"):
            if formatter.width < WIDE:
                formatter.write_dl(rows)
                return
            half = -(-len(rows) // 2)
            for left, right in zip(rows[:half], rows[half:], strict=True):
                formatter.write(f"  {left[0]:<14} {left[1]:<23}{right[0]:<12} {right[1]}\n")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[Any]]":
        from click.shell_completion import CompletionItem

        found: list[CompletionItem[Any]] = [
            CompletionItem(name, help=what)
            for name, (what, _) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        # Not the group's own: it would import every command for its help.
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def main(self, *args: Any, **extra: Any) -> Any:
        have_streams()
        try:
            return super().main(*args, **extra)
        except OSError as error:  # of the help, which is printed before anything is invoked
            drop_output()
            say(f"crabtalk: {unarrived(error)}")
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever read our output has seen enough
            drop_output()
            sys.exit(0)
        except (KeyboardInterrupt, click.Abort):
            sys.exit(130)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception as error:
            sentence = unwritten() or complaint(error)
            if sentence is None:
                raise
            say(f"crabtalk: {one_line(sentence)}")
            sys.exit(1)


def have_streams() -> None:
    """A stream that was closed before we began is one that nobody reads."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def unwritten() -> str | None:
    """Why what was printed did not arrive, if it did not; then nothing more is printed."""
    try:
        sys.stdout.flush()
    except OSError as error:
        drop_output()
        return unarrived(error)
    return None


def unarrived(error: OSError) -> str:
    return f"the output cannot be written: {error.strerror}; send it elsewhere"


def drop_output() -> None:
    """What is still buffered goes nowhere, instead of failing when the interpreter flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    cls=Commands,
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
@no_start_option
@click.version_option(__version__, prog_name="crabtalk", message="%(prog)s %(version)s")
@click.pass_context
def main(
    ctx: click.Context, agent: str | None, sender: str | None, home: Path | None, no_start: bool
) -> None:
    """Talk with your agents: alone it is the chat, or answers what is piped in."""
    if ctx.invoked_subcommand is not None:
        return
    from .message import has_terminal

    if has_terminal():
        chat(home, agent, sender or "", start=not no_start)
    from .ask import ask

    ctx.invoke(ask, agent=agent, sender=sender, home=home)


def chat(home: Path | None, agent: str | None, sender: str, *, start: bool) -> NoReturn:
    from .chat.app import run

    sys.exit(run(home=home, agent=agent, sender=sender, start=start))
