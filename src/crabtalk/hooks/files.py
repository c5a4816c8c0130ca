"""Files: agents read them, and replace text in what they have read."""

import asyncio
import codecs
import os
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar
from weakref import WeakValueDictionary

from msgspec import Meta

from crabtalk.model import Image
from crabtalk.policy import FileAccess
from crabtalk.runtime import ToolDispatch, ToolError, ToolOutput
from crabtalk.storage import Agent, Pair

from .images import Picture, picture_of
from .paths import Identity, Place, Roots, held, read_roots, resolve
from .tool import Tool, ToolHook

T = TypeVar("T")

MOST_BYTES = 50 * 1024 * 1024  # of a file; the contract's number
LINES = 2000  # shown when nobody says how many
LONGEST_LINE = 2000  # characters of a line that are shown
OUTPUT = 48 * 1024  # bytes of lines in one answer, below what is cut from any tool's output
PIECE = 256 * 1024  # bytes between two chances for other threads
CONVERSATIONS = 256  # whose reads are remembered
PATHS = 256  # remembered for each of them
NUMBERS = 20  # line numbers in an error
# What is looked through for something similar; the rest would take too long to compare.
COMPARED_LINES = 10_000
COMPARED_LENGTH = 120
COMPARISONS = 500
SIMILAR = 0.5  # of 1.0

FirstLine = Annotated[int | None, Meta(description="first line", extra_json_schema={"minimum": 1})]
LineCount = Annotated[
    int | None,
    Meta(extra_json_schema={"minimum": 1}),
]


class Read(Tool):
    """Read a file or an image."""

    name = "read"
    kind = "read"
    target = "path"

    path: str
    offset: FirstLine = None
    limit: LineCount = None

    async def run(self, call: ToolDispatch, hook: "FilesHook") -> str | ToolOutput:
        """Cancelled, nothing is remembered."""
        first = max(1, self.offset or 1)
        last = first + max(1, self.limit or LINES) - 1
        access = hook.access_of(call)
        path, identity, found = await asyncio.to_thread(
            read, self.path, call.cwd, access, first, last
        )
        if identity is not None:
            hook.remember(call, path, identity)
        return found


class Edit(Tool):
    """Replace the only old_string in a file you have read."""

    name = "edit"
    kind = "edit"
    target = "path"

    path: str
    old_string: str
    new_string: str

    async def run(self, call: ToolDispatch, hook: "FilesHook") -> str:
        """Cancelled before it begins, nothing happened. After that it is finished, and answers."""
        if not self.old_string:
            raise ToolError("invalid arguments: old_string is empty; say which text to replace")
        if self.old_string == self.new_string:
            raise ToolError("invalid arguments: old_string and new_string are the same text")
        access = hook.access_of(call)
        path = await asyncio.to_thread(lambda: resolve(self.path, call.cwd, access, to_change=True))
        # One after the other: of two edits from the same state one would be lost.
        async with hook.lock(path):
            known = hook.remembered(call, path)
            work = asyncio.to_thread(edit, path, access, known, self.old_string, self.new_string)
            hook.remember(call, path, await finished(work))
        return "ok"


class FilesHook(ToolHook):
    """Which files each conversation has read, and where each agent may go."""

    tools: ClassVar[tuple[type[Tool], ...]] = (Read, Edit)

    def __init__(self, access: Callable[[ToolDispatch], FileAccess] | None = None) -> None:
        """`access` says where a call may go; without it, inside the roots of its agent."""
        self.access_of = access or self._access_by_roots
        self._roots: dict[str, Roots] = {}
        self._reads: OrderedDict[Pair, OrderedDict[Path, Identity]] = OrderedDict()
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    def on_build_agent(self, agent: Agent) -> Agent:
        """Raises AgentError for roots that cannot be used."""
        read_roots(agent)
        return agent

    def on_register_agent(self, name: str, agent: Agent) -> None:
        self._roots[name] = read_roots(agent)

    def on_unregister_agent(self, name: str) -> None:
        self._roots.pop(name, None)

    def _access_by_roots(self, call: ToolDispatch) -> FileAccess:
        """A run that outlives its agent is confined to nothing we know, so it goes nowhere."""
        try:
            roots = self._roots[call.agent]
        except KeyError:
            raise ToolError(f"permission denied: no agent is called {call.agent!r} now") from None
        return FileAccess((roots,) if roots else ())

    def remember(self, call: ToolDispatch, path: Path, identity: Identity) -> None:
        pair = Pair(call.agent, call.sender)
        reads = self._reads.setdefault(pair, OrderedDict())
        reads[path] = identity
        forget_oldest(self._reads, pair, CONVERSATIONS)
        forget_oldest(reads, path, PATHS)

    def remembered(self, call: ToolDispatch, path: Path) -> Identity | None:
        reads = self._reads.get(Pair(call.agent, call.sender))
        return reads.get(path) if reads is not None else None

    def lock(self, path: Path) -> asyncio.Lock:
        """Kept as long as somebody has it."""
        return self._locks.setdefault(path, asyncio.Lock())

    def statistics(self) -> dict[str, int]:
        return {
            "conversations": len(self._reads),
            "files": sum(map(len, self._reads.values())),
            "locks": len(self._locks),
        }


K = TypeVar("K")
V = TypeVar("V")


def forget_oldest(entries: OrderedDict[K, V], used: K, most: int) -> None:
    entries.move_to_end(used)
    while len(entries) > most:
        entries.popitem(last=False)


async def finished(work: Awaitable[T]) -> T:
    """The result of work that must not be left half done. A cancellation is swallowed: what is
    done has to be told, or the agent would believe that it was not."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


def read(
    given: str, cwd: Path, access: FileAccess, first: int, last: int
) -> tuple[Path, Identity | None, str | ToolOutput]:
    """Where the path led, what was there if its lines were shown, and the answer."""
    path = resolve(given, cwd, access)
    excerpt = Excerpt(first, last)
    with held(path, access) as place, opened(place) as (descriptor, status):
        decoder = codecs.getincrementaldecoder("utf-8")()
        for number, piece in enumerate(pieces(descriptor, path)):
            if number == 0 and (picture := picture_of(piece)) is not None:
                return path, None, shown(picture, piece, descriptor, path, status.st_size)
            with utf8(path):
                excerpt.add(decoder.decode(piece))
        with utf8(path):
            decoder.decode(b"", final=True)
    excerpt.close()
    if not excerpt.total:
        return path, None, f"{path} is empty: it has 0 lines"
    if first > excerpt.total:
        return path, None, f"offset {first} is past the end: {path} has {excerpt.total} lines"
    return path, Identity.of(status), excerpt.text()


def shown(picture: Picture, start: bytes, descriptor: int, path: Path, size: int) -> ToolOutput:
    """The image itself, if there is a model that would take it; else what it is, and what to do."""
    text = f"{picture}, {size} bytes"
    if not picture.is_fit(size):
        return ToolOutput(
            f"{text}; no model would take it: make it smaller with bash, then read it"
        )
    data = start + b"".join(pieces(descriptor, path))
    return ToolOutput(text, (Image(picture.media_type, data),))


@contextmanager
def opened(place: Place) -> Iterator[tuple[int, os.stat_result]]:
    descriptor = place.open()
    try:
        status = os.fstat(descriptor)
        check_size(place.path, status.st_size)
        yield descriptor, status
    finally:
        os.close(descriptor)


def pieces(descriptor: int, path: Path) -> Iterator[bytes]:
    """The content, however much of it there is: some files say they are empty and are not."""
    size = 0
    while piece := os.read(descriptor, PIECE):
        size += len(piece)
        check_size(path, size)
        yield piece


def check_size(path: Path, size: int) -> None:
    if size > MOST_BYTES:
        raise ToolError(
            f"{path} is too large: more than {MOST_BYTES} bytes; use bash, such as head or grep"
        )


@contextmanager
def utf8(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise ToolError(f"{path} is not UTF-8 text; look at it with bash, such as file") from None


class Excerpt:
    """Lines of a text that comes in pieces; keeps no more of it than is shown."""

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._last = last
        self._lines: list[str] = []
        self._room = OUTPUT
        self._is_full = False
        self._part = ""  # the beginning of the line that is not over yet
        self._length = 0  # all of it
        self.total = 0

    def add(self, piece: str) -> None:
        ends = piece.count("\n")
        if self._is_full or self.total + ends < self._first or self.total >= self._last:
            # None of the lines that end here is shown.
            self.total += ends
            if ends:
                self._part, self._length = "", 0
            self._extend(piece[piece.rfind("\n") + 1 :])
            return
        *whole, rest = piece.split("\n")
        for line in whole:
            self._extend(line)
            self._end()
        self._extend(rest)

    def close(self) -> None:
        """A last line needs no end."""
        if self._length:
            self._end()

    def text(self) -> str:
        shown = self._first + len(self._lines) - 1
        trailer = f"\n--- {self.total} total lines ---"
        if self._first > 1 or shown < self.total:
            trailer = f"\n--- {self.total} total lines (showing lines {self._first}-{shown}) ---"
        if self._is_full:
            last = min(self._last, self.total)
            trailer += (
                f"\nlines {shown + 1}-{last} are left out, there is no room for them; "
                f"go on with offset {shown + 1}"
            )
        return "".join(self._lines) + trailer

    def _extend(self, text: str) -> None:
        self._part += text[: LONGEST_LINE - len(self._part)]
        self._length += len(text)

    def _end(self) -> None:
        self.total += 1
        if self._first <= self.total <= self._last and not self._is_full:
            part = self._part.removeprefix("\ufeff") if self.total == 1 else self._part
            missing = self._length - len(self._part)
            note = f" … ({missing} more characters in this line)" if missing else ""
            line = f"{self.total}\t{part}{note}\n"
            self._room -= len(line.encode())
            if self._room < 0:
                self._is_full = True
            else:
                self._lines.append(line)
        self._part, self._length = "", 0


# ── Editing ───────────────────────────────────────────────────────────────────────────────────────


def edit(path: Path, access: FileAccess, known: Identity | None, old: str, new: str) -> Identity:
    """Replaces the only `old` there is. Returns what the file is then."""
    with held(path, access, to_change=True) as place:
        with opened(place) as (descriptor, status):
            if known is None:
                raise ToolError(f"{path} was not read in this conversation; read it first")
            if Identity.of(status) != known:
                raise ToolError(f"{path} changed since it was read; read it again, then edit it")
            # Renaming would get around it.
            if not os.access(place.name, os.W_OK, dir_fd=place.directory):
                raise ToolError(f"permission denied: {path} is read-only; use another file")
            with utf8(path):
                text = b"".join(pieces(descriptor, path)).decode()
        try:
            data = replaced(text, old, new, path).encode()
        except UnicodeEncodeError:
            raise ToolError("invalid arguments: new_string holds half a character") from None
        check_size(path, len(data))
        return place.replace(data, status)


def replaced(text: str, old: str, new: str, path: Path) -> str:
    if "\r\n" in text and (old not in text or splits_line_ends(text, old)):
        # Models say \n whatever a file has.
        old, new = with_crlf(old), with_crlf(new)
        if old == new and old in text:
            raise ToolError(f"nothing to change: {path} has these line ends already")
    match text.count(old):
        case 0:
            raise ToolError(f"old_string is not in {path}; {nearest(text, old)}")
        case 1:
            return text.replace(old, new)
        case count:
            raise ToolError(
                f"old_string is {count} times in {path}, at lines {places(text, old)}; "
                "make it longer, so that it is there once"
            )


def splits_line_ends(text: str, old: str) -> bool:
    """Whether `old` is there only as from the middle of a CRLF, whose half would be left over."""
    return old.startswith("\n") and text.count("\r" + old) == text.count(old)


def with_crlf(text: str) -> str:
    return re.sub(r"(?<!\r)\n", "\r\n", text)


def places(text: str, old: str) -> str:
    """The numbers of the lines where `old` begins."""
    numbers: list[str] = []
    position, line = 0, 1
    while (found := text.find(old, position)) >= 0:
        if len(numbers) == NUMBERS:
            return ", ".join(numbers) + ", …"
        line += text.count("\n", position, found)
        numbers.append(str(line))
        position = found + len(old)
        line += old.count("\n")
    return ", ".join(numbers)


def nearest(text: str, old: str) -> str:
    """The lines most like `old`, found by its longest one."""
    wanted = old.splitlines() or [old]
    telling = max(range(len(wanted)), key=lambda number: len(wanted[number].strip()))
    lines = text.split("\n", COMPARED_LINES)[:COMPARED_LINES]
    at = most_similar(lines, wanted[telling].strip())
    if at is None:
        return "nothing in it is like that; read it again"
    start = max(0, at - min(telling, 2))
    shown = lines[start : max(at + 1, start + min(len(wanted), 5))]
    numbered = [f"{number}\t{line[:LONGEST_LINE]}" for number, line in enumerate(shown, start + 1)]
    return "\n".join(["the nearest is", *numbered])


def most_similar(lines: Sequence[str], wanted: str) -> int | None:
    """Where the line is that is most like `wanted`, if one is at all."""
    import difflib  # late: few edits go wrong

    matcher = difflib.SequenceMatcher(b=wanted[:COMPARED_LENGTH], autojunk=False)
    best, at = SIMILAR, None
    comparisons = COMPARISONS if wanted else 0
    for number, line in enumerate(lines):
        matcher.set_seq1(line.strip()[:COMPARED_LENGTH])
        # The first two cost little, and are never less than the ratio.
        if matcher.real_quick_ratio() <= best or matcher.quick_ratio() <= best:
            continue
        if not comparisons:
            break
        comparisons -= 1
        if (ratio := matcher.ratio()) > best:
            best, at = ratio, number
    return at
