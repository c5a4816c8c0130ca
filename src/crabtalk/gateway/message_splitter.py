"""Splitting: a long answer as messages a service takes. Pure: text in, pieces out.

A piece ends after a paragraph or a code block if it can, else after a line, a word, at worst a
character as people see it. A code block that has to be cut is closed, and opened again in the next
piece. Nothing of the text is lost: what the pieces have taken is the text.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MeasureText = Callable[[str], int]

FENCE_PATTERN = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^\n]*)")
# A better place to cut is taken only if it leaves a piece of this share of the longest.
MIN_PIECE_DIVISOR = 4
# Of a language's name, when its block is opened again.
MAX_INFO = 32
# However small a service says its messages are.
MIN_LIMIT = 16
JOINER = "\u200d"


@dataclass(frozen=True, slots=True)
class MessagePiece:
    text: str  # as it is sent
    taken: int  # characters of what was given
    fence: str = ""  # the line that opens the block in which the next piece begins


def cut_piece(text: str, limit: int, measure: MeasureText, fence: str = "") -> MessagePiece:
    """The first piece of a text that begins inside `fence`, if any. At least a character long."""
    whole = render_piece(text, len(text), fence)
    if measure(whole.text) <= limit:
        return whole
    longest = find_longest_fit(text, limit, measure, fence)
    for place in find_cut_places(text, longest, fence):
        piece = render_piece(text, place, fence)
        if measure(piece.text) <= limit:
            return piece
    # Smaller than any repair: the bare characters.
    place = max(1, min(longest, limit))
    return MessagePiece(text[:place], place, find_open_fence(text[:place], fence))


def split_text(
    text: str, limit: int, measure: MeasureText, fence: str = ""
) -> Iterator[MessagePiece]:
    """All of a text. What is nothing but space is left out."""
    while text.strip():
        piece = cut_piece(text, limit, measure, fence)
        yield piece
        text, fence = text[piece.taken :], piece.fence


def find_open_fence(text: str, fence: str = "") -> str:
    """The line that opened the code block which `text` ends in; empty outside of one."""
    for line in text.split("\n"):
        fence = update_fence(line, fence)
    return fence


def update_fence(line: str, fence: str) -> str:
    found = FENCE_PATTERN.fullmatch(line.rstrip())
    if found is None:
        return fence
    marks, info = found[1], found[2].strip()
    if not fence:
        is_inline = marks[0] == "`" and "`" in info
        return "" if is_inline else f"{marks} {info[:MAX_INFO]}".strip().replace(" ", "", 1)
    opened = FENCE_PATTERN.fullmatch(fence)
    is_end = opened is not None and marks.startswith(opened[1]) and not info
    return "" if is_end else fence


def render_piece(text: str, place: int, fence: str) -> MessagePiece:
    """What is before `place`, with the code blocks it cuts closed and opened again."""
    part = text[:place]
    after = find_open_fence(part, fence)
    shown = part.strip("\n").rstrip()
    if fence and part.strip():
        shown = f"{fence}\n{shown}"
    if after:
        shown = f"{shown}\n{get_fence_marks(after)}"
    return MessagePiece(shown, place, after)


def get_fence_marks(fence: str) -> str:
    found = FENCE_PATTERN.fullmatch(fence)
    return found[1] if found is not None else "```"


def find_longest_fit(text: str, limit: int, measure: MeasureText, fence: str) -> int:
    """How many characters fit, if cut anywhere."""
    low, high = 1, min(len(text), 4 * max(limit, MIN_LIMIT))
    while low < high:
        middle = (low + high + 1) // 2
        if measure(render_piece(text, middle, fence).text) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def find_cut_places(text: str, longest: int, fence: str) -> Iterator[int]:
    """Where to cut, best first: all of them within the first `longest` characters."""
    least = longest // MIN_PIECE_DIVISOR
    paragraphs, lines = find_line_ends(text[: longest + 1], fence)
    yield from (place for place in reversed(paragraphs) if least <= place <= longest)
    yield from (place for place in reversed(lines) if least <= place <= longest)
    start = text.rfind("\n", 0, longest) + 1
    if FENCE_PATTERN.match(text, start) and start:
        yield start  # a line of marks says something only as a whole
    space = longest
    while (space := text.rfind(" ", least, space)) > 0:
        yield space + 1
    yield from (place for place in range(longest, 0, -1) if is_boundary(text, place))
    yield from range(longest, 0, -1)


def find_line_ends(text: str, fence: str) -> tuple[list[int], list[int]]:
    """After which characters a paragraph or code block ends, and where only a line does."""
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


def is_boundary(text: str, place: int) -> bool:
    """Whether what is before and after are two characters to whoever reads them."""
    if place <= 0 or place >= len(text):
        return True
    before, after = text[place - 1], text[place]
    if is_extending(after) or JOINER in (before, after) or (before, after) == ("\r", "\n"):
        return False
    if is_surrogate(before) and is_surrogate(after) and before < "\udc00" <= after:
        return False
    if is_flag(before) and is_flag(after):
        start = place
        while start > 0 and is_flag(text[start - 1]):
            start -= 1
        return (place - start) % 2 == 0
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
    """Korean letters that are written as one."""
    if "\u1100" <= before <= "\u115f":
        return "\u1100" <= after <= "\u11a7" or "\uac00" <= after <= "\ud7a3"
    follows = "\u1160" <= after <= "\u11ff"
    return follows and ("\u1160" <= before <= "\u11ff" or "\uac00" <= before <= "\ud7a3")
