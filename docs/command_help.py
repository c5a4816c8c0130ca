"""Write the help texts of commands into the pages, and write the manual page.

With --check, only list the stale pages. Below `<!-- help: the rest -->` a page shows every command
that no page shows by name.
"""

import re
import sys
from pathlib import Path

from apps.help_page import ROOT, HelpPage, update_pages
from crabtalk.cli.main import main
from docs.man_page import MAN_PAGE, render_man_page

SCRIPT = "docs.command_help"
PAGES = [
    HelpPage(main, path, SCRIPT)
    for path in ("docs/memory.md", "docs/command-line.md", "docs/commands.md")
]
REMAINING_COMMANDS = re.compile(
    r"(<!-- help: the rest -->\n)(.*?)(<!-- end of the rest -->)", re.DOTALL
)


def refresh_page(page: HelpPage, text: str) -> str:
    """Return the page with fresh blocks. Commands on other pages are not among the rest."""
    named = {
        word
        for other in PAGES
        if other is not page
        for word in page.list_shown_commands(other.read_page())
    }
    named.update(page.list_shown_commands(REMAINING_COMMANDS.sub("", text)))
    rest = [name for name in page.list_commands() if name not in named]
    return page.refresh_blocks(
        REMAINING_COMMANDS.sub(lambda found: f"{found[1]}\n{render_blocks(rest)}{found[3]}", text)
    )


def render_blocks(commands: list[str]) -> str:
    paths = (" ".join(["crabtalk", *command.split()]) for command in commands)
    return "".join(f"<!-- help: {path} -->\n\n```text\n```\n\n" for path in paths)


def render_pages() -> dict[Path, str]:
    """Render each page and the manual page."""
    found = {ROOT / page.path: refresh_page(page, page.read_page()) for page in PAGES}
    return {ROOT / MAN_PAGE: render_man_page(list(PAGES[0].iterate_contexts())), **found}


if __name__ == "__main__":
    sys.exit(update_pages(render_pages(), SCRIPT))
