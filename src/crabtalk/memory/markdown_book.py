"""The tree: a memory as a book of pages for people, one file an entry, one directory a kind.

Reads and writes those directories, SUMMARY.md and a first book.toml; whatever else is there is the
user's. Links are not followed: what they lead to is not in the tree.
"""

import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unicodedata import normalize

from . import markdown_page
from .authors import add_author, get_author
from .entry import (
    AUTHOR_MARK,
    MAX_ENTRIES,
    EntryKind,
    MemoryEntry,
    check_limits,
    quote_name,
    strip_author_prefix,
)
from .errors import MarkdownBookError, MemoryLimitError

DIRECTORIES = {EntryKind.NOTE: "notes", EntryKind.ARCHIVE: "archives", EntryKind.TOPIC: "topics"}
BOOK_TOML = '[book]\ntitle = "Memory"\nsrc = "."\n\n[output.html]\n'
MAX_FILE_NAME = 255
UNFIT_CHARACTERS = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]")
# What means something in markdown.
MARKDOWN_CHARACTERS = re.compile(r"([\\`*_{}\[\]<>#+\-.!|&~()])")


def write_book(entries: Iterable[MemoryEntry], directory: Path) -> None:
    by_kind: dict[EntryKind, list[MemoryEntry]] = {kind: [] for kind in EntryKind}
    for entry in sorted(entries, key=lambda entry: (entry.name, entry.id)):
        by_kind[entry.kind].append(entry)
    with convert_os_errors(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        summary = ["# Summary", ""]
        for kind, them in by_kind.items():
            place = directory / DIRECTORIES[kind]
            clear_pages(place)
            if them or kind is not EntryKind.TOPIC:
                place.mkdir(mode=0o700, exist_ok=True)
            if them:
                summary += [f"# {DIRECTORIES[kind].capitalize()}", ""]
            for entry, stem in assign_stems(them):
                write_file(place / f"{stem}.md", markdown_page.render_page(entry, stem))
                link = format_link(f"{place.name}/{stem}.md")
                summary.append(f"- [{escape_markdown(format_title(entry))}]({link})")
            if them:
                summary.append("")
        write_file(directory / "SUMMARY.md", "\n".join(summary))
        if not os.path.lexists(directory / "book.toml"):
            write_file(directory / "book.toml", BOOK_TOML)


def read_book(directory: Path, now: int) -> list[MemoryEntry]:
    """All or, when it raises, nothing. Ids are given anew, in the order of the files."""
    found: list[MemoryEntry] = []
    owners: dict[str, str] = {}
    with convert_os_errors(directory):
        places = {kind: directory / name for kind, name in DIRECTORIES.items()}
        if not any(os.path.lexists(place) for place in places.values()):
            raise MarkdownBookError(
                f"{directory} has no notes, archives or topics; name the directory of a dump"
            )
        for kind, place in places.items():
            for path in list_pages(place):
                entry = read_page(path, kind, len(found) + 1, now)
                claim_names(entry, f"{place.name}/{path.name}", owners)
                found.append(entry)
    if len(found) > MAX_ENTRIES:
        raise MarkdownBookError(f"there are more than {MAX_ENTRIES} pages; load fewer")
    return found


def list_pages(place: Path) -> list[Path]:
    """The pages of a directory, by name. Hidden files are no pages."""
    refuse_link(place)
    if not place.exists():
        return []
    names = (path for path in place.iterdir() if path.suffix == ".md" and path.name[0] != ".")
    return sorted((path for path in names if not path.is_dir()), key=lambda path: path.name)


def read_page(path: Path, kind: EntryKind, number: int, now: int) -> MemoryEntry:
    refuse_link(path)
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as reader:
        data = reader.read()
    try:
        found = markdown_page.parse_page(data.decode())
        name = found.name or path.stem
        created_at = now if found.created_at is None else found.created_at
        entry = MemoryEntry(number, created_at, kind, name, found.content, found.aliases)
        if found.author:
            entry = add_author(entry, check_author(found.author))
        check_limits(entry.name, entry.content, entry.aliases)
    except UnicodeDecodeError:
        raise MarkdownBookError(f"{path} is not UTF-8; save it as that and load again") from None
    except MemoryLimitError as error:
        raise MarkdownBookError(f"{path}: {error}") from None
    return entry


def check_author(author: str) -> str:
    """Raises LimitError for what `author_label` never gives."""
    if AUTHOR_MARK in author:
        raise MemoryLimitError("its author is not a sender; mend that row, or remove it")
    return author


def claim_names(entry: MemoryEntry, file: str, owners: dict[str, str]) -> None:
    for name in {entry.name, *entry.aliases}:
        if (other := owners.setdefault(name, file)) != file:
            raise MarkdownBookError(
                f"{other} and {file} are both called {quote_name(name)}; rename one and load again"
            )


def clear_pages(place: Path) -> None:
    """Removes the pages of an earlier dump, so that what was renamed since is not there twice."""
    refuse_link(place)
    if place.exists():
        for path in place.iterdir():
            if path.suffix == ".md" and not (path.is_dir() and not path.is_symlink()):
                path.unlink()


def refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise MarkdownBookError(
            f"{path} is a link and is not followed; put what it leads to in its place"
        )


def write_file(path: Path, text: str) -> None:
    with suppress(FileNotFoundError):
        path.unlink()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "wb") as writer:
        writer.write(text.encode())


def assign_stems(entries: list[MemoryEntry]) -> Iterator[tuple[MemoryEntry, str]]:
    """Entries and what their files are called: the name where a file can have it, and no other
    file is called the same to a system that sees no difference in case or spelling."""
    taken: set[str] = set()
    for entry in entries:
        name = entry.name if entry.kind is EntryKind.ARCHIVE else strip_author_prefix(entry.name)
        stem = name
        attempt = 0
        while not is_file_stem(stem) or fold_stem(stem) in taken:
            stem = escape_stem(name, attempt)
            attempt += 1
        taken.add(fold_stem(stem))
        yield entry, stem


def fold_stem(stem: str) -> str:
    return normalize("NFC", normalize("NFC", stem).casefold())


def is_file_stem(stem: str) -> bool:
    return (
        bool(stem)
        and not UNFIT_CHARACTERS.search(stem)
        and not stem.startswith((".", " "))
        and not stem.endswith((".", " "))
        and len(stem.encode()) + len(".md") <= MAX_FILE_NAME
    )


def escape_stem(name: str, attempt: int) -> str:
    """A name for people, and a number so that it is the only one."""
    readable = UNFIT_CHARACTERS.sub("-", name).strip(". ").encode()[:80].decode(errors="ignore")
    return f"{readable}~{zlib.crc32(f'{attempt} {name}'.encode()):08x}"


def format_title(entry: MemoryEntry) -> str:
    author = "" if entry.kind is EntryKind.ARCHIVE else get_author(entry)
    return f"{strip_author_prefix(entry.name)} ({author})" if author else entry.name


def escape_markdown(name: str) -> str:
    return MARKDOWN_CHARACTERS.sub(r"\\\1", " ".join(name.split()) or "?")


def format_link(target: str) -> str:
    """Where it leads, as markdown can say it."""
    if re.fullmatch(r"[\w./-]+", target):
        return target
    return "<" + re.sub(r"([\\<>&])", r"\\\1", target) + ">"


@contextmanager
def convert_os_errors(directory: Path) -> Iterator[None]:
    """What the file system refuses is a TreeError."""
    try:
        yield
    except OSError as error:
        raise MarkdownBookError(
            f"cannot use {error.filename or directory}: {error.strerror or error}; name a "
            "directory that you may use"
        ) from None
