"""Updates a page of the docs that shows the `--help` of commands.

A command's help is in the block below a line like `<!-- help: crabtalk-cron next -->`.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
WIDTH = 78  # for a screen of 80 columns; click leaves two free


class HelpPage:
    """The help of one program on one page. `path` is the page, `script` the module to run."""

    def __init__(self, program: click.Group, path: str, script: str) -> None:
        self.program = program
        self.path = path
        self.script = script
        self.block_pattern = re.compile(
            rf"(<!-- help: {program.name}((?: [a-z]+)*) -->\n+```text\n)(.*?)(```)", re.DOTALL
        )

    def read_page(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")

    def refresh_blocks(self, page: str) -> str:
        """The page with up-to-date blocks."""
        return self.block_pattern.sub(
            lambda block: f"{block[1]}{self.render_help(block[2].split())}\n{block[4]}", page
        )

    def list_shown_commands(self, page: str) -> list[str]:
        """The commands whose help is on a page, without the program's name."""
        return [block[1].strip() for block in self.block_pattern.findall(page)]

    def list_commands(self) -> list[str]:
        """All commands, groups included, without the program's name."""
        paths = (context.command_path for context in self.iterate_contexts())
        return [path.removeprefix(f"{self.program.name}").strip() for path in paths]

    def iterate_contexts(self) -> Iterator[click.Context]:
        """The contexts of all commands, as on a screen of 80 columns."""
        queue = [self._make_root_context()]
        while queue:
            context = queue.pop(0)
            yield context
            queue = [*iterate_subcommands(context), *queue]

    def render_help(self, words: list[str]) -> str:
        """The output of the program for these words and `--help`."""
        context, rest = self._make_root_context(), words
        while rest:
            group = context.command
            resolved = (
                resolve_command(group, context, rest) if isinstance(group, click.Group) else None
            )
            if resolved is None:
                path = " ".join([str(self.program.name), *words])
                raise SystemExit(f"there is no command `{path}`")
            context, rest = resolved
        return context.get_help()

    def _make_root_context(self) -> click.Context:
        program = self.program
        return click.Context(
            program, info_name=program.name, terminal_width=WIDTH, **program.context_settings
        )

    def update_page(self) -> int:
        """Write the page if it is stale; with --check, only report it. Returns an exit status."""
        return update_pages({ROOT / self.path: self.refresh_blocks(self.read_page())}, self.script)


def resolve_command(
    group: click.Group, context: click.Context, words: list[str]
) -> tuple[click.Context, list[str]] | None:
    """The command that the first word names, and the words after it."""
    try:
        name, command, rest = group.resolve_command(context, words)
    except click.UsageError:
        return None
    return (click.Context(command, info_name=name, parent=context), rest) if command else None


def iterate_subcommands(context: click.Context) -> Iterator[click.Context]:
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if command is not None:
                yield click.Context(command, info_name=name, parent=context)


def update_pages(pages: dict[Path, str], script: str) -> int:
    """Write stale pages; with --check, only report them. Returns an exit status."""
    stale = {
        path: text
        for path, text in pages.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    if "--check" in sys.argv:
        for path in stale:
            click.echo(f"{path.relative_to(ROOT)} is stale: run python -m {script}", err=True)
        return 1 if stale else 0
    for path, text in stale.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0
