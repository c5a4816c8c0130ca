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

from . import page
from .authors import author_of, with_author
from .entry import MARK, MAX_ENTRIES, Entry, Kind, check, plain_name, shown
from .errors import LimitError, TreeError

DIRECTORIES = {Kind.NOTE: "notes", Kind.ARCHIVE: "archives", Kind.TOPIC: "topics"}
BOOK = '[book]\ntitle = "Memory"\nsrc = "."\n\n[output.html]\n'
MAX_FILE_NAME = 255
UNFIT = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]")
# What means something in markdown.
MARKED = re.compile(r"([\\`*_{}\[\]<>#+\-.!|&~()])")


def dump(entries: Iterable[Entry], directory: Path) -> None:
    by_kind: dict[Kind, list[Entry]] = {kind: [] for kind in Kind}
    for entry in sorted(entries, key=lambda entry: (entry.name, entry.id)):
        by_kind[entry.kind].append(entry)
    with told(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        summary = ["# Summary", ""]
        for kind, them in by_kind.items():
            place = directory / DIRECTORIES[kind]
            clear(place)
            if them or kind is not Kind.TOPIC:
                place.mkdir(mode=0o700, exist_ok=True)
            if them:
                summary += [f"# {DIRECTORIES[kind].capitalize()}", ""]
            for entry, stem in with_stems(them):
                write(place / f"{stem}.md", page.write(entry, stem))
                summary.append(f"- [{marked(title(entry))}]({link(f'{place.name}/{stem}.md')})")
            if them:
                summary.append("")
        write(directory / "SUMMARY.md", "\n".join(summary))
        if not os.path.lexists(directory / "book.toml"):
            write(directory / "book.toml", BOOK)


def load(directory: Path, now: int) -> list[Entry]:
    """All or, when it raises, nothing. Ids are given anew, in the order of the files."""
    found: list[Entry] = []
    owners: dict[str, str] = {}
    with told(directory):
        places = {kind: directory / name for kind, name in DIRECTORIES.items()}
        if not any(os.path.lexists(place) for place in places.values()):
            raise TreeError(
                f"{directory} has no notes, archives or topics; name the directory of a dump"
            )
        for kind, place in places.items():
            for path in pages(place):
                entry = read(path, kind, len(found) + 1, now)
                claim(entry, f"{place.name}/{path.name}", owners)
                found.append(entry)
    if len(found) > MAX_ENTRIES:
        raise TreeError(f"there are more than {MAX_ENTRIES} pages; load fewer")
    return found


def pages(place: Path) -> list[Path]:
    """The pages of a directory, by name. Hidden files are no pages."""
    refuse_link(place)
    if not place.exists():
        return []
    names = (path for path in place.iterdir() if path.suffix == ".md" and path.name[0] != ".")
    return sorted((path for path in names if not path.is_dir()), key=lambda path: path.name)


def read(path: Path, kind: Kind, number: int, now: int) -> Entry:
    refuse_link(path)
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as reader:
        data = reader.read()
    try:
        found = page.read(data.decode())
        name = found.name or path.stem
        created_at = now if found.created_at is None else found.created_at
        entry = Entry(number, created_at, kind, name, found.content, found.aliases)
        if found.author:
            entry = with_author(entry, check_author(found.author))
        check(entry.name, entry.content, entry.aliases)
    except UnicodeDecodeError:
        raise TreeError(f"{path} is not UTF-8; save it as that and load again") from None
    except LimitError as error:
        raise TreeError(f"{path}: {error}") from None
    return entry


def check_author(author: str) -> str:
    """Raises LimitError for what `author_label` never gives."""
    if MARK in author:
        raise LimitError("its author is not a sender; mend that row, or remove it")
    return author


def claim(entry: Entry, file: str, owners: dict[str, str]) -> None:
    for name in {entry.name, *entry.aliases}:
        if (other := owners.setdefault(name, file)) != file:
            raise TreeError(
                f"{other} and {file} are both called {shown(name)}; rename one and load again"
            )


def clear(place: Path) -> None:
    """Removes the pages of an earlier dump, so that what was renamed since is not there twice."""
    refuse_link(place)
    if place.exists():
        for path in place.iterdir():
            if path.suffix == ".md" and not (path.is_dir() and not path.is_symlink()):
                path.unlink()


def refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise TreeError(f"{path} is a link and is not followed; put what it leads to in its place")


def write(path: Path, text: str) -> None:
    with suppress(FileNotFoundError):
        path.unlink()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "wb") as writer:
        writer.write(text.encode())


def with_stems(entries: list[Entry]) -> Iterator[tuple[Entry, str]]:
    """Entries and what their files are called: the name where a file can have it, and no other
    file is called the same to a system that sees no difference in case or spelling."""
    taken: set[str] = set()
    for entry in entries:
        name = entry.name if entry.kind is Kind.ARCHIVE else plain_name(entry.name)
        stem = name
        attempt = 0
        while not is_fit(stem) or key(stem) in taken:
            stem = escaped(name, attempt)
            attempt += 1
        taken.add(key(stem))
        yield entry, stem


def key(stem: str) -> str:
    return normalize("NFC", normalize("NFC", stem).casefold())


def is_fit(stem: str) -> bool:
    return (
        bool(stem)
        and not UNFIT.search(stem)
        and not stem.startswith((".", " "))
        and not stem.endswith((".", " "))
        and len(stem.encode()) + len(".md") <= MAX_FILE_NAME
    )


def escaped(name: str, attempt: int) -> str:
    """A name for people, and a number so that it is the only one."""
    readable = UNFIT.sub("-", name).strip(". ").encode()[:80].decode(errors="ignore")
    return f"{readable}~{zlib.crc32(f'{attempt} {name}'.encode()):08x}"


def title(entry: Entry) -> str:
    author = "" if entry.kind is Kind.ARCHIVE else author_of(entry)
    return f"{plain_name(entry.name)} ({author})" if author else entry.name


def marked(name: str) -> str:
    return MARKED.sub(r"\\\1", " ".join(name.split()) or "?")


def link(target: str) -> str:
    """Where it leads, as markdown can say it."""
    if re.fullmatch(r"[\w./-]+", target):
        return target
    return "<" + re.sub(r"([\\<>&])", r"\\\1", target) + ">"


@contextmanager
def told(directory: Path) -> Iterator[None]:
    """What the file system refuses is a TreeError."""
    try:
        yield
    except OSError as error:
        raise TreeError(
            f"cannot use {error.filename or directory}: {error.strerror or error}; name a "
            "directory that you may use"
        ) from None
