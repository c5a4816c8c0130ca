"""The directory of Markdown pages that a memory is dumped to and loaded from."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CommandError

if TYPE_CHECKING:
    from crabtalk.memory import MemoryEntry


def write_memory_pages(entries: "list[MemoryEntry]", directory: Path) -> None:
    """Replace the pages in the directory. Raises CommandError if it would lose a person's page."""
    from crabtalk.memory import markdown_book

    names = {entry.name for entry in entries}
    for kind in markdown_book.DIRECTORIES.values():
        for path in (directory / kind).glob("*.md"):
            if path.is_file() and path.stem not in names and not is_dumped_page(path):
                raise CommandError(
                    f"{path} is a page of yours that the memory does not have; load it first, or "
                    "name another directory"
                )
    markdown_book.write_book(entries, directory)


def read_memory_pages(directory: Path) -> "list[MemoryEntry]":
    from crabtalk.memory import markdown_book

    return markdown_book.read_book(directory, int(time.time()))


def is_dumped_page(path: Path) -> bool:
    """Whether a page begins as dumped pages do; pages that people write begin otherwise."""
    from crabtalk.memory import markdown_page

    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        return next(lines, "").strip() == markdown_page.OPENING
