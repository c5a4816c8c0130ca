"""crabtalk memory: what agents remember, and its round trip through files that people edit."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.component.command import (
    document,
    json_option,
    line_width,
    one_line,
    say,
    show,
    styled,
    table,
    visible,
)

from .book import read_book, write_book
from .complaints import CommandError
from .difference import Difference
from .emphasis import emphasised
from .moments import age, day, timestamp
from .places import place_options, placed

if TYPE_CHECKING:
    from crabtalk.memory import Entry, Hit

LINES = 3  # of an entry that was found


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
@place_options
@json_option
def memory_search(words: tuple[str, ...], limit: int, in_json: bool, **where: Any) -> None:
    """Find entries by any of the words, the best first.

    \b
    Examples:
      crabtalk memory search crab tide tables
      crabtalk memory search --file crab.crmem tide --limit 20 --json
    """
    place, query = placed(words, "QUERY...", **where)
    asked = " ".join(query)
    with place.read() as store:
        hits = store.search(asked, limit)
    if in_json:
        document({"hits": [{**as_json(hit.entry), "score": hit.score} for hit in hits]})
    elif hits:
        show("\n\n".join(hit_text(hit, asked) for hit in hits))
    else:
        say("nothing found")


@memory.command("show")
@click.argument("words", nargs=-1, metavar="AGENT NAME")
@place_options
@json_option
def memory_show(words: tuple[str, ...], in_json: bool, **where: Any) -> None:
    """Print an entry, found by its name or an alias, as it is.

    \b
    Examples:
      crabtalk memory show crab deploy
      crabtalk memory show crab deploy --json
    """
    place, (name,) = placed(words, "NAME", **where)
    with place.read() as store:
        entry = store.entry(name)
    if in_json:
        document(as_json(entry))
    elif sys.stdout.isatty():
        show(visible(entry.content, layout=True))
    else:
        click.echo(entry.content.encode(), nl=False)


@memory.command("list")
@click.argument("words", nargs=-1, metavar="AGENT")
@place_options
@json_option
def memory_list(words: tuple[str, ...], in_json: bool, **where: Any) -> None:
    """List dates, kinds and names, in the order they were written.

    \b
    Examples:
      crabtalk memory list crab
      crabtalk memory list --file ~/.crabtalk/memory/crab.crmem
    """
    place, _ = placed(words, **where)
    with place.read() as store:
        entries = store.entries()
    if in_json:
        document({"entries": [as_json(entry, content=False) for entry in entries]})
    elif entries:
        show(table([(day(e.created_at), kind_of(e), one_line(e.name)) for e in entries]))
    else:
        say("it remembers nothing yet")


@memory.command("dump")
@click.argument("words", nargs=-1, metavar="AGENT DIR")
@place_options
@json_option
def memory_dump(words: tuple[str, ...], in_json: bool, **where: Any) -> None:
    """Write a memory as a book of pages, one file an entry.

    Read it with `mdbook serve DIR`, edit it with anything, and `load` it. Pages of
    an earlier dump in DIR are replaced, edited or not; book.toml stays.

    \b
    Example:
      crabtalk memory dump crab ~/brain
    """
    place, (word,) = placed(words, "DIR", **where)
    directory = Path(word).expanduser()
    with place.read() as store:
        entries = store.entries()
    write_book(entries, directory)
    if in_json:
        document({"directory": str(directory), "entries": len(entries)})
    else:
        count = "1 entry is" if len(entries) == 1 else f"{len(entries)} entries are"
        say(f"{count} in {directory}")


@memory.command("load")
@click.argument("words", nargs=-1, metavar="AGENT DIR")
@click.option("--yes", is_flag=True, help="Do not ask.")
@place_options
@json_option
def memory_load(words: tuple[str, ...], yes: bool, in_json: bool, **where: Any) -> None:
    """Put the pages of a book in the place of all an agent remembers.

    Says what changes and asks first. A page that cannot be read changes nothing.

    \b
    Examples:
      crabtalk memory load crab ~/brain
      crabtalk memory load crab ~/brain --yes
    """
    place, (word,) = placed(words, "DIR", **where)
    pages = read_book(Path(word).expanduser())
    with place.write() as store:
        before = store.entries()
        difference = Difference.between(before, pages)
        if not in_json:
            show(difference.as_text())
        elif not yes:
            say(difference.as_text())
        if difference and not yes:
            agree()
            # People take their time, and agents go on meanwhile.
            if store.entries() != before:
                raise CommandError("it has changed since, and is left as it is; load again")
        if difference:
            store.replace(pages)
    if in_json:
        document(
            {
                "added": difference.added,
                "removed": difference.removed,
                "changed": difference.changed,
            }
        )


def agree() -> None:
    if not sys.stdin.isatty():
        raise CommandError("nothing was changed; without a terminal to ask on, say --yes")
    if not click.confirm("Change it?", err=True):
        raise CommandError("nothing was changed; edit the pages and load them again")


def as_json(entry: "Entry", *, content: bool = True) -> dict[str, Any]:
    known = {
        "name": entry.name,
        "kind": kind_of(entry),
        "created_at": timestamp(entry.created_at),
        "aliases": list(entry.aliases),
    }
    return {**known, "content": entry.content} if content else known


def hit_text(hit: "Hit", query: str) -> str:
    """Name, kind and age, and the first lines that say something."""
    entry = hit.entry
    name = styled(one_line(entry.name), bold=True)
    lines = [line for line in entry.content.splitlines() if line.strip()]
    shown = [f"  {emphasised(one_line(line, line_width() - 2), query)}" for line in lines[:LINES]]
    return "\n".join(
        [f"{name} · {kind_of(entry)}, {age(time.time() - entry.created_at)} old", *shown]
    )


def kind_of(entry: "Entry") -> str:
    return entry.kind.name.lower()
