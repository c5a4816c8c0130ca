"""Splits a long answer into messages that fit. Pure: text in, pieces out.

A piece ends after a paragraph or a code block if possible, else after a line, a word, at worst
after a grapheme. A code block that has to be cut is closed, and opened again in the next piece. No
text is lost: the `taken` parts of all pieces, joined, are the whole text.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MeasureText = Callable[[str], int]

FENCE_PATTERN = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^\n]*)")
# A better cut position is used only if the piece is at least limit / MIN_PIECE_DIVISOR long.
MIN_PIECE_DIVISOR = 4
# Characters of the language's name that are repeated when its block is opened again.
MAX_INFO = 32
# The smallest limit that is used, even if a service reports less.
MIN_LIMIT = 16
JOINER = "\u200d"


@dataclass(frozen=True, slots=True)
class MessagePiece:
    text: str  # as it is sent
    taken: int  # characters of the input that it covers
    fence: str = ""  # the line that opens the code block in which the next piece begins


def cut_piece(text: str, limit: int, measure: MeasureText, fence: str = "") -> MessagePiece:
    """The first piece of a text that begins inside `fence`, if any. At least one character long."""
    whole = render_piece(text, len(text), fence)
    if measure(whole.text) <= limit:
        return whole
    longest = find_longest_fit(text, limit, measure, fence)
    for position in find_cut_places(text, longest, fence):
        piece = render_piece(text, position, fence)
        if measure(piece.text) <= limit:
            return piece
    # The limit has no room for closing a code block: cut the bare characters.
    position = max(1, min(longest, limit))
    return MessagePiece(text[:position], position, find_open_fence(text[:position], fence))


def split_text(
    text: str, limit: int, measure: MeasureText, fence: str = ""
) -> Iterator[MessagePiece]:
    """All pieces of a text. Pieces of nothing but space are left out."""
    while text.strip():
        piece = cut_piece(text, limit, measure, fence)
        yield piece
        text, fence = text[piece.taken :], piece.fence


def find_open_fence(text: str, fence: str = "") -> str:
    """The line that opened the code block in which `text` ends; empty outside of one."""
    for line in text.split("\n"):
        fence = update_fence(line, fence)
    return fence


def update_fence(line: str, fence: str) -> str:
    match = FENCE_PATTERN.fullmatch(line.rstrip())
    if match is None:
        return fence
    marks, info = match[1], match[2].strip()
    if not fence:
        is_inline = marks[0] == "`" and "`" in info
        return "" if is_inline else f"{marks} {info[:MAX_INFO]}".strip().replace(" ", "", 1)
    opened = FENCE_PATTERN.fullmatch(fence)
    is_end = opened is not None and marks.startswith(opened[1]) and not info
    return "" if is_end else fence


def render_piece(text: str, position: int, fence: str) -> MessagePiece:
    """The text before `position`; code blocks that it cuts are closed and opened again."""
    part = text[:position]
    after = find_open_fence(part, fence)
    rendered = part.strip("\n").rstrip()
    if fence and part.strip():
        rendered = f"{fence}\n{rendered}"
    if after:
        rendered = f"{rendered}\n{get_fence_marks(after)}"
    return MessagePiece(rendered, position, after)


def get_fence_marks(fence: str) -> str:
    match = FENCE_PATTERN.fullmatch(fence)
    return match[1] if match is not None else "```"


def find_longest_fit(text: str, limit: int, measure: MeasureText, fence: str) -> int:
    """How many characters fit, if the text is cut anywhere."""
    low, high = 1, min(len(text), 4 * max(limit, MIN_LIMIT))
    while low < high:
        middle = (low + high + 1) // 2
        if measure(render_piece(text, middle, fence).text) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def find_cut_places(text: str, longest: int, fence: str) -> Iterator[int]:
    """Where to cut, best first; all positions are within the first `longest` characters."""
    least = longest // MIN_PIECE_DIVISOR
    paragraphs, lines = find_line_ends(text[: longest + 1], fence)
    yield from (position for position in reversed(paragraphs) if least <= position <= longest)
    yield from (position for position in reversed(lines) if least <= position <= longest)
    start = text.rfind("\n", 0, longest) + 1
    if FENCE_PATTERN.match(text, start) and start:
        yield start  # keeps a fence line whole
    space = longest
    while (space := text.rfind(" ", least, space)) > 0:
        yield space + 1
    yield from (position for position in range(longest, 0, -1) if is_boundary(text, position))
    yield from range(longest, 0, -1)


def find_line_ends(text: str, fence: str) -> tuple[list[int], list[int]]:
    """The positions after a paragraph or code block, and those after other lines."""
    paragraphs: list[int] = []
    lines: list[int] = []
    start = 0
    while (end := text.find("\n", start)) >= 0:
        line, before = text[start:end], fence
        fence = update_fence(line, before)
        if before and not fence:  # the block ends here
            paragraphs.append(end + 1)
        elif fence and not before:  # it begins here
            if start:
                paragraphs.append(start)
        elif not line.strip() and not fence:
            paragraphs.append(end + 1)
        else:
            lines.append(end + 1)
        start = end + 1
    return sorted(set(paragraphs)), lines


def is_boundary(text: str, position: int) -> bool:
    """Whether the text can be cut at `position` without splitting a grapheme."""
    if position <= 0 or position >= len(text):
        return True
    before, after = text[position - 1], text[position]
    if is_extending(after) or JOINER in (before, after) or (before, after) == ("\r", "\n"):
        return False
    if is_surrogate(before) and is_surrogate(after) and before < "\udc00" <= after:
        return False
    if is_flag(before) and is_flag(after):
        start = position
        while start > 0 and is_flag(text[start - 1]):
            start -= 1
        return (position - start) % 2 == 0
    return not is_same_syllable(before, after)


def is_extending(character: str) -> bool:
    code = ord(character)
    return (
        unicodedata.category(character) in ("Mn", "Me", "Mc")
        or 0xFE00 <= code <= 0xFE0F
        or 0x1F3FB <= code <= 0x1F3FF
        or 0xE0020 <= code <= 0xE007F
    )


def is_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def is_same_syllable(before: str, after: str) -> bool:
    """Whether these are Hangul letters of one syllable."""
    if "\u1100" <= before <= "\u115f":
        return "\u1100" <= after <= "\u11a7" or "\uac00" <= after <= "\ud7a3"
    follows = "\u1160" <= after <= "\u11ff"
    return follows and ("\u1160" <= before <= "\u11ff" or "\uac00" <= before <= "\ud7a3")
