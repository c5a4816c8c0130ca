"""Segment: text as it grows, handed on in pieces that stand on their own.

A piece ends between paragraphs and never inside a block of code, unless there is no end in sight;
then the block is closed for the one piece and opened again for the next.
"""

import re
from collections.abc import Iterator

# From here on a piece goes at the next break between paragraphs, and from there on in any case.
# Characters.
ENOUGH = 4096
MOST = 65_536
LINE = 200
FENCE = re.compile(r"\s*(`{3,}|~{3,})([^\n]*)")


class Segment:
    __slots__ = (
        "_break",
        "_fence",
        "_lines",
        "_opening",
        "_repeated",
        "_size",
        "_tail",
        "is_over",
        "thinking",
    )

    def __init__(self, *, thinking: bool = False) -> None:
        self.thinking = thinking
        self.is_over = False
        self._begin("")

    def _begin(self, text: str) -> None:
        self._lines: list[str] = []  # with their ends
        self._tail: list[str] = []  # pieces of the line that has no end yet
        self._size = 0
        self._repeated = 0  # of that, how much was handed on before
        self._break = 0  # so many lines are whole paragraphs
        self._fence = ""
        self._opening = ""  # the line that opened the block of code we are in
        self._add(text)

    @property
    def text(self) -> str:
        return "".join(self._lines) + "".join(self._tail)

    @property
    def pending(self) -> int:
        """How many of the characters that were added are not handed on yet."""
        return self._size - self._repeated

    def add(self, text: str) -> Iterator[str]:
        """What is ready to go now."""
        for start in range(0, len(text), MOST):
            self._add(text[start : start + MOST])
            if self._size > ENOUGH:
                yield from self.paragraphs()
            while self._size > MOST:
                yield from trimmed(self._cut())

    def paragraphs(self) -> Iterator[str]:
        """All up to the last break between paragraphs."""
        if not self._break:
            return
        ready, self._lines = self._lines[: self._break], self._lines[self._break :]
        self._break = self._repeated = 0
        self._size -= sum(map(len, ready))
        yield from trimmed("".join(ready))

    def rest(self) -> Iterator[str]:
        """All of it. Nothing is left, and a block of code may begin anew."""
        text = self.text
        self._begin("")
        yield from trimmed(text)

    def _add(self, text: str) -> None:
        self._size += len(text)
        *ends, tail = text.split("\n")
        for end in ends:
            self._end_line("".join([*self._tail, end, "\n"]))
            self._tail = []
        if tail:
            self._tail.append(tail)

    def _end_line(self, line: str) -> None:
        self._lines.append(line)
        fence = FENCE.match(line)
        if self._fence:
            if fence and closes(fence, self._fence):
                self._fence = self._opening = ""
        elif fence and not (fence[1][0] == "`" and "`" in fence[2]):
            self._fence, self._opening = fence[1], line
        elif not line.strip():
            self._break = len(self._lines)

    def _cut(self) -> str:
        text = self.text
        near = max(text.rfind("\n", 0, MOST), 0) or max(text.rfind(" ", 0, MOST), 0)
        # A cut too early makes the next piece no shorter.
        place = near + 1 if near > MOST // 2 else MOST
        self._begin(text[:place])
        # A block that opens with a page of its own is none.
        fence, opening = (self._fence, self._opening) if len(self._opening) < LINE else ("", "")
        self._begin(opening + text[place:])
        self._repeated = len(opening)
        return f"{text[:place].rstrip()}\n{fence}" if fence else text[:place]


def in_pieces(text: str) -> Iterator[str]:
    segment = Segment()
    yield from segment.add(text)
    yield from segment.rest()


def closes(fence: re.Match[str], opened: str) -> bool:
    return fence[1].startswith(opened) and not fence[2].strip()


def trimmed(text: str) -> Iterator[str]:
    text = text.strip("\r\n")
    if text.strip():
        yield text
