"""Splits growing text into pieces that can stand alone.

A piece ends between paragraphs and never inside a code block, unless the block is too long: then it
is closed at the end of the piece and opened again in the next one.
"""

import re
from collections.abc import Iterator

# In characters. Above the soft limit a piece ends at the next paragraph break, at the hard limit in
# any case.
SOFT_LIMIT = 4096
HARD_LIMIT = 65_536
MAX_FENCE_LINE = 200
FENCE = re.compile(r"\s*(`{3,}|~{3,})([^\n]*)")


class TextSegment:
    __slots__ = (
        "_fence",
        "_fence_line",
        "_lines",
        "_paragraph_lines",
        "_partial_line",
        "_repeated_size",
        "_size",
        "is_ended",
        "thinking",
    )

    def __init__(self, *, thinking: bool = False) -> None:
        self.thinking = thinking
        self.is_ended = False
        self._reset("")

    def _reset(self, text: str) -> None:
        self._lines: list[str] = []  # with their line ends
        self._partial_line: list[str] = []  # parts of the line that has no end yet
        self._size = 0
        self._repeated_size = 0  # of that, how much was already in an earlier piece
        self._paragraph_lines = 0  # the number of lines that form whole paragraphs
        self._fence = ""
        self._fence_line = ""  # the line that opened the current code block
        self._add(text)

    @property
    def text(self) -> str:
        return "".join(self._lines) + "".join(self._partial_line)

    @property
    def pending_size(self) -> int:
        """How many of the added characters are in no piece yet."""
        return self._size - self._repeated_size

    def add(self, text: str) -> Iterator[str]:
        """Add text, and yield the pieces that are ready."""
        for start in range(0, len(text), HARD_LIMIT):
            self._add(text[start : start + HARD_LIMIT])
            if self._size > SOFT_LIMIT:
                yield from self.take_paragraphs()
            while self._size > HARD_LIMIT:
                yield from trim_piece(self._split_off_piece())

    def take_paragraphs(self) -> Iterator[str]:
        """Yield everything up to the last paragraph break."""
        if not self._paragraph_lines:
            return
        ready, self._lines = (
            self._lines[: self._paragraph_lines],
            self._lines[self._paragraph_lines :],
        )
        self._paragraph_lines = self._repeated_size = 0
        self._size -= sum(map(len, ready))
        yield from trim_piece("".join(ready))

    def take_rest(self) -> Iterator[str]:
        """Yield everything. Nothing is left afterwards, and no code block is open."""
        text = self.text
        self._reset("")
        yield from trim_piece(text)

    def _add(self, text: str) -> None:
        self._size += len(text)
        *ends, tail = text.split("\n")
        for end in ends:
            self._end_line("".join([*self._partial_line, end, "\n"]))
            self._partial_line = []
        if tail:
            self._partial_line.append(tail)

    def _end_line(self, line: str) -> None:
        self._lines.append(line)
        fence = FENCE.match(line)
        if self._fence:
            if fence and closes_fence(fence, self._fence):
                self._fence = self._fence_line = ""
        elif fence and not (fence[1][0] == "`" and "`" in fence[2]):
            self._fence, self._fence_line = fence[1], line
        elif not line.strip():
            self._paragraph_lines = len(self._lines)

    def _split_off_piece(self) -> str:
        text = self.text
        near = max(text.rfind("\n", 0, HARD_LIMIT), 0) or max(text.rfind(" ", 0, HARD_LIMIT), 0)
        # Splitting too early would not make the next piece shorter.
        place = near + 1 if near > HARD_LIMIT // 2 else HARD_LIMIT
        self._reset(text[:place])
        # A fence line that is longer than a normal one is not repeated.
        fence, opening = (
            (self._fence, self._fence_line) if len(self._fence_line) < MAX_FENCE_LINE else ("", "")
        )
        self._reset(opening + text[place:])
        self._repeated_size = len(opening)
        return f"{text[:place].rstrip()}\n{fence}" if fence else text[:place]


def split_text(text: str) -> Iterator[str]:
    segment = TextSegment()
    yield from segment.add(text)
    yield from segment.take_rest()


def closes_fence(fence: re.Match[str], opened: str) -> bool:
    return fence[1].startswith(opened) and not fence[2].strip()


def trim_piece(text: str) -> Iterator[str]:
    text = text.strip("\r\n")
    if text.strip():
        yield text
