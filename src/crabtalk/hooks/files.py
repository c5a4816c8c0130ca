"""Files: the tools `read` and `edit`.

An agent can only edit a file it has read in the same conversation, and only if the file has not
changed since.
"""

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

from .image_info import ImageInfo, detect_image
from .paths import FileIdentity, PinnedFile, Roots, pin_file, read_roots, resolve_path
from .tool import AgentTool, ToolHook

T = TypeVar("T")

MAX_FILE_BYTES = 50 * 1024 * 1024  # of a file; set by the specification
DEFAULT_LINE_LIMIT = 2000  # shown without a `limit`
MAX_LINE_LENGTH = 2000  # characters of a line that are shown
# Bytes of lines in one answer: below the size at which the engine truncates tool output.
MAX_OUTPUT_BYTES = 48 * 1024
READ_SIZE = 256 * 1024  # bytes per read call; other threads can run between two of them
CONVERSATIONS = 256  # whose reads are remembered
PATHS = 256  # remembered for each of them
MAX_LINE_NUMBERS = 20  # line numbers in an error
# Limits of the search for similar lines; comparing more would take too long.
MAX_COMPARED_LINES = 10_000
MAX_COMPARED_LENGTH = 120
MAX_COMPARISONS = 500
MIN_SIMILARITY = 0.5  # of 1.0

FirstLine = Annotated[int | None, Meta(description="first line", extra_json_schema={"minimum": 1})]
LineCount = Annotated[
    int | None,
    Meta(extra_json_schema={"minimum": 1}),
]


class ReadTool(AgentTool):
    """Read a file or an image."""

    name = "read"
    kind = "read"
    target = "path"

    path: str
    offset: FirstLine = None
    limit: LineCount = None

    async def run(self, call: ToolDispatch, hook: "FilesHook") -> str | ToolOutput:
        """Read the file. When this is cancelled, the read is not remembered."""
        first = max(1, self.offset or 1)
        last = first + max(1, self.limit or DEFAULT_LINE_LIMIT) - 1
        access = hook.access_of(call)
        path, identity, output = await asyncio.to_thread(
            read_excerpt, self.path, call.cwd, access, first, last
        )
        if identity is not None:
            hook.remember_read(call, path, identity)
        return output


class EditTool(AgentTool):
    """Replace the only old_string in a file you have read."""

    name = "edit"
    kind = "edit"
    target = "path"

    path: str
    old_string: str
    new_string: str

    async def run(self, call: ToolDispatch, hook: "FilesHook") -> str:
        """Edit the file. When this is cancelled before the edit begins, nothing has changed; after
        that the edit is finished, and this returns normally."""
        if not self.old_string:
            raise ToolError("invalid arguments: old_string is empty; say which text to replace")
        if self.old_string == self.new_string:
            raise ToolError("invalid arguments: old_string and new_string are the same text")
        access = hook.access_of(call)
        path = await asyncio.to_thread(
            lambda: resolve_path(self.path, call.cwd, access, to_change=True)
        )
        # One edit at a time: of two edits of the same content one would be lost.
        async with hook.get_lock(path):
            known = hook.find_remembered_read(call, path)
            work = asyncio.to_thread(
                edit_file, path, access, known, self.old_string, self.new_string
            )
            hook.remember_read(call, path, await wait_uncancelled(work))
        return "ok"


class FilesHook(ToolHook):
    """Remembers which files each conversation has read, and the roots of each agent."""

    tools: ClassVar[tuple[type[AgentTool], ...]] = (ReadTool, EditTool)

    def __init__(self, access: Callable[[ToolDispatch], FileAccess] | None = None) -> None:
        """`access` returns which paths a call may use; without it, the roots of its agent apply."""
        self.access_of = access or self._access_by_roots
        self._roots: dict[str, Roots] = {}
        self._reads: OrderedDict[Pair, OrderedDict[Path, FileIdentity]] = OrderedDict()
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
        """Return access to the agent's roots. Raises ToolError if the agent was removed while its
        run continues: its roots are unknown then."""
        try:
            roots = self._roots[call.agent]
        except KeyError:
            raise ToolError(f"permission denied: no agent is called {call.agent!r} now") from None
        return FileAccess((roots,) if roots else ())

    def remember_read(self, call: ToolDispatch, path: Path, identity: FileIdentity) -> None:
        pair = Pair(call.agent, call.sender)
        reads = self._reads.setdefault(pair, OrderedDict())
        reads[path] = identity
        drop_least_recent(self._reads, pair, CONVERSATIONS)
        drop_least_recent(reads, path, PATHS)

    def find_remembered_read(self, call: ToolDispatch, path: Path) -> FileIdentity | None:
        reads = self._reads.get(Pair(call.agent, call.sender))
        return reads.get(path) if reads is not None else None

    def get_lock(self, path: Path) -> asyncio.Lock:
        """Return the lock of a file. It is dropped when the last user releases it."""
        return self._locks.setdefault(path, asyncio.Lock())

    def statistics(self) -> dict[str, int]:
        return {
            "conversations": len(self._reads),
            "files": sum(map(len, self._reads.values())),
            "locks": len(self._locks),
        }


K = TypeVar("K")
V = TypeVar("V")


def drop_least_recent(entries: OrderedDict[K, V], used: K, most: int) -> None:
    entries.move_to_end(used)
    while len(entries) > most:
        entries.popitem(last=False)


async def wait_uncancelled(work: Awaitable[T]) -> T:
    """Wait for work that must not be left half done, and return its result.

    A cancellation is swallowed: the edit happens, so the agent has to learn that it did.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


def read_excerpt(
    requested: str, cwd: Path, access: FileAccess, first: int, last: int
) -> tuple[Path, FileIdentity | None, str | ToolOutput]:
    """Return the resolved path, the file's identity if lines were shown, and the tool's output."""
    path = resolve_path(requested, cwd, access)
    excerpt = FileExcerpt(first, last)
    with pin_file(path, access) as pinned, open_descriptor(pinned) as (descriptor, status):
        decoder = codecs.getincrementaldecoder("utf-8")()
        for number, piece in enumerate(read_pieces(descriptor, path)):
            if number == 0 and (image := detect_image(piece)) is not None:
                return (
                    path,
                    None,
                    build_image_output(image, piece, descriptor, path, status.st_size),
                )
            with translate_decode_errors(path):
                excerpt.add(decoder.decode(piece))
        with translate_decode_errors(path):
            decoder.decode(b"", final=True)
    excerpt.close()
    if not excerpt.total:
        return path, None, f"{path} is empty: it has 0 lines"
    if first > excerpt.total:
        return path, None, f"offset {first} is past the end: {path} has {excerpt.total} lines"
    return path, FileIdentity.from_stat(status), excerpt.text()


def build_image_output(
    image: ImageInfo, start: bytes, descriptor: int, path: Path, size: int
) -> ToolOutput:
    """Return the image, or advice if no model would accept it."""
    text = f"{image}, {size} bytes"
    if not image.is_fit(size):
        return ToolOutput(
            f"{text}; no model would take it: make it smaller with bash, then read it"
        )
    data = start + b"".join(read_pieces(descriptor, path))
    return ToolOutput(text, (Image(image.media_type, data),))


@contextmanager
def open_descriptor(pinned: PinnedFile) -> Iterator[tuple[int, os.stat_result]]:
    descriptor = pinned.open()
    try:
        status = os.fstat(descriptor)
        check_size(pinned.path, status.st_size)
        yield descriptor, status
    finally:
        os.close(descriptor)


def read_pieces(descriptor: int, path: Path) -> Iterator[bytes]:
    """Yield the content. The size is counted here, as files in /proc report a size of 0."""
    size = 0
    while piece := os.read(descriptor, READ_SIZE):
        size += len(piece)
        check_size(path, size)
        yield piece


def check_size(path: Path, size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise ToolError(
            f"{path} is too large: more than {MAX_FILE_BYTES} bytes; use bash, such as head or grep"
        )


@contextmanager
def translate_decode_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise ToolError(f"{path} is not UTF-8 text; look at it with bash, such as file") from None


class FileExcerpt:
    """Collects the lines to show from a text that comes in pieces; keeps no others in memory."""

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._last = last
        self._lines: list[str] = []
        self._room = MAX_OUTPUT_BYTES
        self._is_full = False
        self._part = ""  # the beginning of the current line
        self._length = 0  # the full length of that line so far
        self.total = 0

    def add(self, piece: str) -> None:
        ends = piece.count("\n")
        if self._is_full or self.total + ends < self._first or self.total >= self._last:
            # No line that ends in this piece is shown.
            self.total += ends
            if ends:
                self._part, self._length = "", 0
            self._extend(piece[piece.rfind("\n") + 1 :])
            return
        *whole, rest = piece.split("\n")
        for line in whole:
            self._extend(line)
            self._end_line()
        self._extend(rest)

    def close(self) -> None:
        """End the last line, which may have no newline."""
        if self._length:
            self._end_line()

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
        self._part += text[: MAX_LINE_LENGTH - len(self._part)]
        self._length += len(text)

    def _end_line(self) -> None:
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


def edit_file(
    path: Path, access: FileAccess, known: FileIdentity | None, old: str, new: str
) -> FileIdentity:
    """Replace the only occurrence of `old`. Returns the new identity of the file."""
    with pin_file(path, access, to_change=True) as pinned:
        with open_descriptor(pinned) as (descriptor, status):
            if known is None:
                raise ToolError(f"{path} was not read in this conversation; read it first")
            if FileIdentity.from_stat(status) != known:
                raise ToolError(f"{path} changed since it was read; read it again, then edit it")
            # The rename below would succeed on a read-only file.
            if not os.access(pinned.name, os.W_OK, dir_fd=pinned.directory):
                raise ToolError(f"permission denied: {path} is read-only; use another file")
            with translate_decode_errors(path):
                text = b"".join(read_pieces(descriptor, path)).decode()
        try:
            data = replace_only_match(text, old, new, path).encode()
        except UnicodeEncodeError:
            raise ToolError("invalid arguments: new_string holds half a character") from None
        check_size(path, len(data))
        return pinned.replace(data, status)


def replace_only_match(text: str, old: str, new: str, path: Path) -> str:
    if "\r\n" in text and (old not in text or splits_line_ends(text, old)):
        # Models write \n even for files with \r\n.
        old, new = convert_to_crlf(old), convert_to_crlf(new)
        if old == new and old in text:
            raise ToolError(f"nothing to change: {path} has these line ends already")
    match text.count(old):
        case 0:
            raise ToolError(f"old_string is not in {path}; {describe_nearest_lines(text, old)}")
        case 1:
            return text.replace(old, new)
        case count:
            raise ToolError(
                f"old_string is {count} times in {path}, at lines {list_match_lines(text, old)}; "
                "make it longer, so that it is there once"
            )


def splits_line_ends(text: str, old: str) -> bool:
    """Whether every match of `old` starts inside a CRLF, so that a lone \\r would be left over."""
    return old.startswith("\n") and text.count("\r" + old) == text.count(old)


def convert_to_crlf(text: str) -> str:
    return re.sub(r"(?<!\r)\n", "\r\n", text)


def list_match_lines(text: str, old: str) -> str:
    """The numbers of the lines where `old` begins."""
    numbers: list[str] = []
    position, line = 0, 1
    while (match := text.find(old, position)) >= 0:
        if len(numbers) == MAX_LINE_NUMBERS:
            return ", ".join(numbers) + ", …"
        line += text.count("\n", position, match)
        numbers.append(str(line))
        position = match + len(old)
        line += old.count("\n")
    return ", ".join(numbers)


def describe_nearest_lines(text: str, old: str) -> str:
    """Return the lines most similar to `old`, found by comparing its longest line."""
    wanted = old.splitlines() or [old]
    longest = max(range(len(wanted)), key=lambda number: len(wanted[number].strip()))
    lines = text.split("\n", MAX_COMPARED_LINES)[:MAX_COMPARED_LINES]
    at = find_most_similar_line(lines, wanted[longest].strip())
    if at is None:
        return "nothing in it is like that; read it again"
    start = max(0, at - min(longest, 2))
    shown = lines[start : max(at + 1, start + min(len(wanted), 5))]
    numbered = [
        f"{number}\t{line[:MAX_LINE_LENGTH]}" for number, line in enumerate(shown, start + 1)
    ]
    return "\n".join(["the nearest is", *numbered])


def find_most_similar_line(lines: Sequence[str], wanted: str) -> int | None:
    """Return the index of the line most similar to `wanted`, or None below MIN_SIMILARITY."""
    import difflib  # late: few edits fail

    matcher = difflib.SequenceMatcher(b=wanted[:MAX_COMPARED_LENGTH], autojunk=False)
    best, at = MIN_SIMILARITY, None
    comparisons = MAX_COMPARISONS if wanted else 0
    for number, line in enumerate(lines):
        matcher.set_seq1(line.strip()[:MAX_COMPARED_LENGTH])
        # Both are cheap upper bounds of ratio().
        if matcher.real_quick_ratio() <= best or matcher.quick_ratio() <= best:
            continue
        if not comparisons:
            break
        comparisons -= 1
        if (ratio := matcher.ratio()) > best:
            best, at = ratio, number
    return at
