"""Writes the help of each command into the page that shows it; with --check, only says if it is
stale. A page shows a command's help in the block below a line `<!-- help: crabtalk-web up -->`.
"""

import re
import sys
from pathlib import Path

import click

from crabtalk_web.cli import NAME, main

PAGE = Path(__file__).with_name("README.md")
BLOCK = re.compile(rf"(<!-- help: {NAME}((?: [a-z]+)*) -->\n+```text\n)(.*?)(```)", re.DOTALL)


def fresh(page: str) -> str:
    """The page with every block as it should be."""
    return BLOCK.sub(lambda block: f"{block[1]}{help_of(block[2].split())}\n{block[4]}", page)


def shown(page: str) -> list[str]:
    """The commands whose help is on a page."""
    return [block[1].strip() for block in BLOCK.findall(page)]


def help_of(words: list[str]) -> str:
    """What `crabtalk-web WORDS --help` prints on a screen of 80 columns."""
    # Click leaves two columns free.
    context = click.Context(main, info_name=NAME, terminal_width=78, **main.context_settings)
    command: click.Command = main
    for word in words:
        assert isinstance(command, click.Group)  # noqa: S101 - only groups have commands
        found = command.get_command(context, word)
        if found is None:
            raise SystemExit(f"there is no command `{NAME} {' '.join(words)}`")
        command = found
        context = click.Context(command, info_name=word, parent=context)
    return context.get_help()


def update(check: bool) -> int:
    page = PAGE.read_text(encoding="utf-8")
    if fresh(page) == page:
        return 0
    if check:
        click.echo("README.md is stale: run python apps/web/help_pages.py", err=True)
        return 1
    PAGE.write_text(fresh(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(update(check="--check" in sys.argv))
