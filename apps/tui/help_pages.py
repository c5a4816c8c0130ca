"""Writes the help of commands into the pages that show it, and the manual page; with --check, only
says which are stale. Below `<!-- help: the rest -->` a page shows that of every command that no
page shows by name.
"""

import re
import sys
from pathlib import Path

from apps.help_page import ROOT, HelpPage, update
from apps.tui.man_page import MAN_PAGE, man_page
from crabtalk_tui.cli import main

SCRIPT = "apps.tui.help_pages"
PAGES = [
    HelpPage(main, path, SCRIPT)
    for path in ("docs/memory.md", "apps/tui/README.md", "docs/commands.md")
]
REST = re.compile(r"(<!-- help: the rest -->\n)(.*?)(<!-- end of the rest -->)", re.DOTALL)


def fresh(page: HelpPage, text: str) -> str:
    """With every block as it should be; what other pages show is not among the rest."""
    named = {word for other in PAGES if other is not page for word in page.shown(other.text())}
    named.update(page.shown(REST.sub("", text)))
    rest = [name for name in page.commands() if name not in named]
    return page.fresh(REST.sub(lambda found: f"{found[1]}\n{blocks(rest)}{found[3]}", text))


def blocks(commands: list[str]) -> str:
    paths = (" ".join(["crabtalk", *command.split()]) for command in commands)
    return "".join(f"<!-- help: {path} -->\n\n```text\n```\n\n" for path in paths)


def pages() -> dict[Path, str]:
    """Each page and the manual, as they should be."""
    found = {ROOT / page.path: fresh(page, page.text()) for page in PAGES}
    return {ROOT / MAN_PAGE: man_page(list(PAGES[0].contexts())), **found}


if __name__ == "__main__":
    sys.exit(update(pages(), SCRIPT))
