"""The book: a memory as markdown pages for people, one file per entry, one directory per kind.

Reads and writes those directories, SUMMARY.md and an initial book.toml; other files belong to the
user. Symbolic links are not followed: their targets are not in the book.
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
# Characters with a meaning in markdown.
MARKDOWN_CHARACTERS = re.compile(r"([\\`*_{}\[\]<>#+\-.!|&~()])")


def write_book(entries: Iterable[MemoryEntry], directory: Path) -> None:
    by_kind: dict[EntryKind, list[MemoryEntry]] = {kind: [] for kind in EntryKind}
    for entry in sorted(entries, key=lambda entry: (entry.name, entry.id)):
        by_kind[entry.kind].append(entry)
    with convert_os_errors(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        summary = ["# Summary", ""]
        for kind, kind_entries in by_kind.items():
            folder = directory / DIRECTORIES[kind]
            clear_pages(folder)
            if kind_entries or kind is not EntryKind.TOPIC:
                folder.mkdir(mode=0o700, exist_ok=True)
            if kind_entries:
                summary += [f"# {DIRECTORIES[kind].capitalize()}", ""]
            for entry, stem in assign_stems(kind_entries):
                write_file(folder / f"{stem}.md", markdown_page.render_page(entry, stem))
                link = format_link(f"{folder.name}/{stem}.md")
                summary.append(f"- [{escape_markdown(format_title(entry))}]({link})")
            if kind_entries:
                summary.append("")
        write_file(directory / "SUMMARY.md", "\n".join(summary))
        if not os.path.lexists(directory / "book.toml"):
            write_file(directory / "book.toml", BOOK_TOML)


def read_book(directory: Path, now: int) -> list[MemoryEntry]:
    """Read all pages, or raise. Ids are assigned anew, in the order of the files."""
    entries: list[MemoryEntry] = []
    owners: dict[str, str] = {}
    with convert_os_errors(directory):
        folders = {kind: directory / name for kind, name in DIRECTORIES.items()}
        if not any(os.path.lexists(folder) for folder in folders.values()):
            raise MarkdownBookError(
                f"{directory} has no notes, archives or topics; name the directory of a dump"
            )
        for kind, folder in folders.items():
            for path in list_pages(folder):
                entry = read_page(path, kind, len(entries) + 1, now)
                claim_names(entry, f"{folder.name}/{path.name}", owners)
                entries.append(entry)
    if len(entries) > MAX_ENTRIES:
        raise MarkdownBookError(f"there are more than {MAX_ENTRIES} pages; load fewer")
    return entries


def list_pages(folder: Path) -> list[Path]:
    """The pages of a directory, sorted by name. Hidden files are not pages."""
    refuse_link(folder)
    if not folder.exists():
        return []
    names = (path for path in folder.iterdir() if path.suffix == ".md" and path.name[0] != ".")
    return sorted((path for path in names if not path.is_dir()), key=lambda path: path.name)


def read_page(path: Path, kind: EntryKind, number: int, now: int) -> MemoryEntry:
    refuse_link(path)
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as reader:
        data = reader.read()
    try:
        page = markdown_page.parse_page(data.decode())
        name = page.name or path.stem
        created_at = now if page.created_at is None else page.created_at
        entry = MemoryEntry(number, created_at, kind, name, page.content, page.aliases)
        if page.author:
            entry = add_author(entry, check_author(page.author))
        check_limits(entry.name, entry.content, entry.aliases)
    except UnicodeDecodeError:
        raise MarkdownBookError(f"{path} is not UTF-8; save it as that and load again") from None
    except MemoryLimitError as error:
        raise MarkdownBookError(f"{path}: {error}") from None
    return entry


def check_author(author: str) -> str:
    """Raises MemoryLimitError for a text that `encode_author` never returns."""
    if AUTHOR_MARK in author:
        raise MemoryLimitError("its author is not a sender; mend that row, or remove it")
    return author


def claim_names(entry: MemoryEntry, file: str, owners: dict[str, str]) -> None:
    for name in {entry.name, *entry.aliases}:
        if (other := owners.setdefault(name, file)) != file:
            raise MarkdownBookError(
                f"{other} and {file} are both called {quote_name(name)}; rename one and load again"
            )


def clear_pages(folder: Path) -> None:
    """Remove the pages of an earlier dump, so that renamed entries are not there twice."""
    refuse_link(folder)
    if folder.exists():
        for path in folder.iterdir():
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
    """Give each entry a file name: its name, if that is a valid file name.

    File names differ even on systems that ignore case or Unicode normalization.
    """
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
    """A readable form of the name, with a checksum that makes it unique."""
    readable = UNFIT_CHARACTERS.sub("-", name).strip(". ").encode()[:80].decode(errors="ignore")
    return f"{readable}~{zlib.crc32(f'{attempt} {name}'.encode()):08x}"


def format_title(entry: MemoryEntry) -> str:
    author = "" if entry.kind is EntryKind.ARCHIVE else get_author(entry)
    return f"{strip_author_prefix(entry.name)} ({author})" if author else entry.name


def escape_markdown(name: str) -> str:
    return MARKDOWN_CHARACTERS.sub(r"\\\1", " ".join(name.split()) or "?")


def format_link(target: str) -> str:
    """Format a link target for markdown."""
    if re.fullmatch(r"[\w./-]+", target):
        return target
    return "<" + re.sub(r"([\\<>&])", r"\\\1", target) + ">"


@contextmanager
def convert_os_errors(directory: Path) -> Iterator[None]:
    """Convert OSError to MarkdownBookError."""
    try:
        yield
    except OSError as error:
        raise MarkdownBookError(
            f"cannot use {error.filename or directory}: {error.strerror or error}; name a "
            "directory that you may use"
        ) from None
