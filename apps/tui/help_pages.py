"""Writes the help of commands into the pages that show it, and the manual page; with --check, only
says which are stale. A page shows a command's help in the block below a line `<!-- help: crabtalk
search -->`; below `<!-- help: the rest -->` it shows that of every command no page shows by name.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from apps.tui.man_page import MAN_PAGE, man_page
from crabtalk_tui.cli import main

ROOT = Path(__file__).parents[2]
PAGES = ("docs/memory.md", "apps/tui/README.md", "docs/commands.md")
BLOCK = re.compile(r"(<!-- help: crabtalk((?: [a-z]+)*) -->\n+```text\n)(.*?)(```)", re.DOTALL)
REST = re.compile(r"(<!-- help: the rest -->\n)(.*?)(<!-- end of the rest -->)", re.DOTALL)


def fresh(page: str, elsewhere: list[str]) -> str:
    """The page with every block as it should be; `elsewhere` are the commands other pages show."""
    named = {*elsewhere, *shown(REST.sub("", page))}
    rest = [name for name in commands() if name not in named]
    page = REST.sub(lambda found: f"{found[1]}\n{blocks(rest)}{found[3]}", page)
    return BLOCK.sub(lambda block: f"{block[1]}{help_of(block[2].split())}\n{block[4]}", page)


def shown(page: str) -> list[str]:
    """The commands whose help is on a page."""
    return [f"crabtalk{block[1]}" for block in BLOCK.findall(page)]


def blocks(names: list[str]) -> str:
    return "".join(f"<!-- help: {name} -->\n\n```text\n```\n\n" for name in names)


def commands() -> list[str]:
    """Every one there is, groups included."""
    return [context.command_path for context in contexts()]


def contexts() -> Iterator[click.Context]:
    """Of every command, as if it had been called on a screen of 80 columns."""
    # Click leaves two columns free.
    root = click.Context(main, info_name="crabtalk", terminal_width=78, **main.context_settings)
    waiting = [root]
    while waiting:
        context = waiting.pop(0)
        yield context
        waiting = [*below(context), *waiting]


def below(context: click.Context) -> Iterator[click.Context]:
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if command is not None:
                yield click.Context(command, info_name=name, parent=context)


def help_of(words: list[str]) -> str:
    """What `crabtalk WORDS --help` prints on a screen of 80 columns."""
    path = " ".join(["crabtalk", *words])
    for context in contexts():
        if context.command_path == path:
            return context.get_help()
    raise SystemExit(f"there is no command `{path}`")


def pages() -> dict[Path, str]:
    """Each page and the manual, as they should be."""
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in PAGES}
    found = {ROOT / MAN_PAGE: man_page(list(contexts()))}
    for name, text in texts.items():
        elsewhere = [word for other, page in texts.items() if other != name for word in shown(page)]
        found[ROOT / name] = fresh(text, elsewhere)
    return found


def update(check: bool) -> int:
    stale = 0
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale += 1
            if check:
                name = path.relative_to(ROOT)
                click.echo(f"{name} is stale: run python -m apps.tui.help_pages", err=True)
            else:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(update(check="--check" in sys.argv))
