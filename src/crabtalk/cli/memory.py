"""crabtalk memory: search, show, dump and load what agents remember.

`dump` writes pages that people can edit, `load` reads them back.
"""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.service.command_line import (
    apply_style,
    escape_controls,
    format_table,
    get_line_width,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .errors import CommandError
from .memory_diff import MemoryDiff
from .memory_location import add_location_options, parse_location
from .search_highlight import highlight_terms
from .times import format_age, format_day, format_timestamp

if TYPE_CHECKING:
    from crabtalk.memory import MemoryEntry, MemoryHit

PREVIEW_LINES = 3  # lines of each hit


@click.group()
def memory() -> None:
    """What an agent remembers: its notes, and archives of old talk.

    \b
    Examples:
      crabtalk memory list crab
      crabtalk memory search crab tide tables
      crabtalk memory show crab deploy
      crabtalk memory dump crab ~/brain
      crabtalk memory load crab ~/brain
    """


@memory.command("search")
@click.argument("words", nargs=-1, metavar="AGENT QUERY...")
@click.option(
    "--limit",
    type=click.IntRange(1, 50),
    default=5,
    show_default=True,
    metavar="N",
    help="Entries at most.",
)
@add_location_options
@json_option
def memory_search(words: tuple[str, ...], limit: int, in_json: bool, **where: Any) -> None:
    """Find entries by any of the words, the best first.

    \b
    Examples:
      crabtalk memory search crab tide tables
      crabtalk memory search --file crab.crmem tide --limit 20 --json
    """
    location, query = parse_location(words, "QUERY...", **where)
    query_text = " ".join(query)
    with location.open_to_read() as store:
        hits = store.search(query_text, limit)
    if in_json:
        print_json({"hits": [{**entry_to_json(hit.entry), "score": hit.score} for hit in hits]})
    elif hits:
        print_output("\n\n".join(format_hit(hit, query_text) for hit in hits))
    else:
        print_to_stderr("nothing found")


@memory.command("show")
@click.argument("words", nargs=-1, metavar="AGENT NAME")
@add_location_options
@json_option
def memory_show(words: tuple[str, ...], in_json: bool, **where: Any) -> None:
    """Print an entry, found by its name or an alias, as it is.

    \b
    Examples:
      crabtalk memory show crab deploy
      crabtalk memory show crab deploy --json
    """
    location, (name,) = parse_location(words, "NAME", **where)
    with location.open_to_read() as store:
        entry = store.get_entry(name)
    if in_json:
        print_json(entry_to_json(entry))
    elif sys.stdout.isatty():
        print_output(escape_controls(entry.content, layout=True))
    else:
        click.echo(entry.content.encode(), nl=False)


@memory.command("list")
@click.argument("words", nargs=-1, metavar="AGENT")
@add_location_options
@json_option
def memory_list(words: tuple[str, ...], in_json: bool, **where: Any) -> None:
    """List dates, kinds and names, in the order they were written.

    \b
    Examples:
      crabtalk memory list crab
      crabtalk memory list --file ~/.crabtalk/memory/crab.crmem
    """
    location, _ = parse_location(words, **where)
    with location.open_to_read() as store:
        entries = store.list_entries()
    if in_json:
        print_json({"entries": [entry_to_json(entry, content=False) for entry in entries]})
    elif entries:
        print_output(
            format_table(
                [(format_day(e.created_at), format_kind(e), to_one_line(e.name)) for e in entries]
            )
        )
    else:
        print_to_stderr("it remembers nothing yet")


@memory.command("dump")
@click.argument("words", nargs=-1, metavar="AGENT DIR")
@add_location_options
@json_option
def memory_dump(words: tuple[str, ...], in_json: bool, **where: Any) -> None:
    """Write a memory as a book of pages, one file an entry.

    Read it with `mdbook serve DIR`, edit it with anything, and `load` it. Pages of
    an earlier dump in DIR are replaced, edited or not; book.toml stays.

    \b
    Example:
      crabtalk memory dump crab ~/brain
    """
    location, (directory_name,) = parse_location(words, "DIR", **where)
    directory = Path(directory_name).expanduser()
    with location.open_to_read() as store:
        entries = store.list_entries()
    write_memory_pages(entries, directory)
    if in_json:
        print_json({"directory": str(directory), "entries": len(entries)})
    else:
        count = "1 entry is" if len(entries) == 1 else f"{len(entries)} entries are"
        print_to_stderr(f"{count} in {directory}")


@memory.command("load")
@click.argument("words", nargs=-1, metavar="AGENT DIR")
@click.option("--yes", is_flag=True, help="Do not ask.")
@add_location_options
@json_option
def memory_load(words: tuple[str, ...], yes: bool, in_json: bool, **where: Any) -> None:
    """Put the pages of a book in the place of all an agent remembers.

    Says what changes and asks first. A page that cannot be read changes nothing.

    \b
    Examples:
      crabtalk memory load crab ~/brain
      crabtalk memory load crab ~/brain --yes
    """
    location, (directory_name,) = parse_location(words, "DIR", **where)
    pages = read_memory_pages(Path(directory_name).expanduser())
    with location.open_to_write() as store:
        before = store.list_entries()
        difference = MemoryDiff.compare(before, pages)
        if not in_json:
            print_output(difference.format_text())
        elif not yes:
            print_to_stderr(difference.format_text())
        if difference and not yes:
            confirm_changes()
            # An agent may have changed its memory while the person was asked.
            if store.list_entries() != before:
                raise CommandError("it has changed since, and is left as it is; load again")
        if difference:
            store.replace(pages)
    if in_json:
        print_json(
            {
                "added": difference.added,
                "removed": difference.removed,
                "changed": difference.changed,
            }
        )


def confirm_changes() -> None:
    if not sys.stdin.isatty():
        raise CommandError("nothing was changed; without a terminal to ask on, say --yes")
    if not click.confirm("Change it?", err=True):
        raise CommandError("nothing was changed; edit the pages and load them again")


def entry_to_json(entry: "MemoryEntry", *, content: bool = True) -> dict[str, Any]:
    fields = {
        "name": entry.name,
        "kind": format_kind(entry),
        "created_at": format_timestamp(entry.created_at),
        "aliases": list(entry.aliases),
    }
    return {**fields, "content": entry.content} if content else fields


def format_hit(hit: "MemoryHit", query: str) -> str:
    """Render name, kind and age, and the first lines that are not blank."""
    entry = hit.entry
    name = apply_style(to_one_line(entry.name), bold=True)
    lines = [line for line in entry.content.splitlines() if line.strip()]
    preview = [
        f"  {highlight_terms(to_one_line(line, get_line_width() - 2), query)}"
        for line in lines[:PREVIEW_LINES]
    ]
    return "\n".join(
        [
            f"{name} · {format_kind(entry)}, {format_age(time.time() - entry.created_at)} old",
            *preview,
        ]
    )


def format_kind(entry: "MemoryEntry") -> str:
    return entry.kind.name.lower()


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
