"""A book: the directory of pages that a memory is written to, and that people edit."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CommandError

if TYPE_CHECKING:
    from crabtalk.memory import MemoryEntry


def write_memory_pages(entries: "list[MemoryEntry]", directory: Path) -> None:
    """In the place of the pages that are there. Raises when one of them would be lost by that."""
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
    """Whether it begins the way pages of a dump do, and pages that people wrote do not."""
    from crabtalk.memory import markdown_page

    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        return next(lines, "").strip() == markdown_page.OPENING
