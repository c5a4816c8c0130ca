"""Writes the help of each command into the pages that show it; with --check, only says which are
stale. A page shows a command's help in the block below a line `<!-- help: crabtalk search -->`.
"""

import re
import sys
from pathlib import Path

import click

from crabtalk_tui.cli import main

ROOT = Path(__file__).parents[2]
PAGES = ("docs/memory.md", "apps/tui/README.md")
BLOCK = re.compile(r"(<!-- help: crabtalk((?: [a-z]+)*) -->\n+```text\n)(.*?)(```)", re.DOTALL)


def fresh(page: str) -> str:
    """The page with every block as it should be."""
    return BLOCK.sub(lambda block: f"{block[1]}{help_of(block[2].split())}\n{block[4]}", page)


def shown(page: str) -> list[str]:
    """The commands whose help is on a page."""
    return [f"crabtalk{block[1]}" for block in BLOCK.findall(page)]


def help_of(words: list[str]) -> str:
    """What `crabtalk WORDS --help` prints on a screen of 80 columns."""
    # Click leaves two columns free.
    context = click.Context(main, info_name="crabtalk", terminal_width=78, **main.context_settings)
    for word in words:
        group = context.command
        command = group.get_command(context, word) if isinstance(group, click.Group) else None
        if command is None:
            raise SystemExit(f"there is no command `crabtalk {' '.join(words)}`")
        context = click.Context(command, info_name=word, parent=context)
    return context.get_help()


def update(check: bool) -> int:
    stale = 0
    for name in PAGES:
        path = ROOT / name
        page = path.read_text(encoding="utf-8")
        if fresh(page) != page:
            stale += 1
            if check:
                click.echo(f"{name} is stale: run python apps/tui/help_pages.py", err=True)
            else:
                path.write_text(fresh(page), encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(update(check="--check" in sys.argv))
