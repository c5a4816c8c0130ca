"""Writes the help of each command into docs/crabup.md; with --check, only says if that is stale.
The page shows a command's help in the block below a line `<!-- help: crabup ps -->`.
"""

import re
import sys
from pathlib import Path

import click

from crabup.cli import main

ROOT = Path(__file__).parents[2]
PAGE = "docs/crabup.md"
BLOCK = re.compile(r"(<!-- help: crabup((?: [a-z]+)*) -->\n+```text\n)(.*?)(```)", re.DOTALL)


def fresh(page: str) -> str:
    """The page with every block as it should be."""
    return BLOCK.sub(lambda block: f"{block[1]}{help_of(block[2].split())}\n{block[4]}", page)


def shown(page: str) -> list[str]:
    """The commands whose help is on the page."""
    return [f"crabup{block[1]}" for block in BLOCK.findall(page)]


def help_of(words: list[str]) -> str:
    """What `crabup WORDS --help` prints on a screen of 80 columns."""
    # Click leaves two columns free.
    context = click.Context(main, info_name="crabup", terminal_width=78, **main.context_settings)
    rest = words
    while rest:
        group = context.command
        if not isinstance(group, click.Group):
            raise SystemExit(f"there is no command `crabup {' '.join(words)}`")
        try:
            name, command, rest = group.resolve_command(context, rest)
        except click.UsageError:
            raise SystemExit(f"there is no command `crabup {' '.join(words)}`") from None
        if command is not None:
            context = click.Context(command, info_name=name, parent=context)
    return context.get_help()


def update(check: bool) -> int:
    path = ROOT / PAGE
    page = path.read_text(encoding="utf-8")
    if fresh(page) == page:
        return 0
    if check:
        click.echo(f"{PAGE} is stale: run python apps/crabup/help_pages.py", err=True)
        return 1
    path.write_text(fresh(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(update(check="--check" in sys.argv))
