"""Inline: what is inside a line of markdown: emphasis, code, links. Pure: text in, spans out.

CommonMark's rules of emphasis, so that `snake_case`, `2 * 3` and half-written words mean what they
mean elsewhere. What it does not know is text.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

CODE, LINK, BOLD, ITALIC, STRIKE = "code", "link", "bold", "italic", "strike"

PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
SCHEMES = ("http://", "https://", "mailto:", "tg://")
# Brackets inside brackets.
DEEPEST = 16
TICKS = re.compile(r"`+")
RUN = re.compile(r"\*+|_+|~~")
ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# Marks inside an address belong to it.
ADDRESS = re.compile(r"https?://[^\s<>*`\[\]()]+(?:\([^\s()<>*`]*\)[^\s<>*`\[\]()]*)*")
IN_ANGLES = re.compile(r"<((?:https?://|mailto:|tg://)[^\s<>]+)>")
TARGET = re.compile(r"\(\s*<?((?:[^\s()<>]|\([^\s()<>]*\))*)>?(?:\s+[\"'(][^\n]*?[\"')])?\s*\)")
PLAIN = re.compile(r"[^\\`!\[<&*_~h]+|h(?!ttps?://)")


@dataclass(frozen=True, slots=True)
class Span:
    """`inside` of code is one text as it is."""

    kind: str
    inside: "tuple[Inline, ...]"
    url: str = ""


Inline: TypeAlias = str | Span


@dataclass(slots=True)
class Run:
    """Marks that may begin or end an emphasis."""

    mark: str
    left: int
    can_open: bool
    can_close: bool
    whole: int = 0

    def __post_init__(self) -> None:
        self.whole = self.left


Token: TypeAlias = str | Span | Run


def inline(text: str) -> tuple[Inline, ...]:
    return emphasised(list(tokens(text)))


# ── Tokens ─────────────────────────────────────────────────────────────────────────────────────


def tokens(text: str) -> Iterator[Token]:
    place = 0
    while place < len(text):
        found = PLAIN.match(text, place) or ADDRESS.match(text, place)
        if found is not None:
            end = place + len(found[0].rstrip("_~") if found.re is ADDRESS else found[0])
            yield text[place:end]
            place = end
            continue
        token, place = special(text, place)
        yield token


def special(text: str, place: int) -> tuple[Token, int]:
    """What begins with a character that may mean something, and where it ends."""
    character = text[place]
    if character == "\\" and text[place + 1 : place + 2] in PUNCTUATION:
        return text[place + 1], place + 2
    if character == "`":
        return code(text, place)
    if (found := IN_ANGLES.match(text, place)) is not None:
        return found[1], found.end()
    if (found := ENTITY.match(text, place)) is not None:
        return html.unescape(found[0]), found.end()
    is_image = text.startswith("![", place)
    if (character == "[" or is_image) and (made := link(text, place + is_image)) is not None:
        return made
    if (found := RUN.match(text, place)) is not None:
        return run(text, found), found.end()
    return character, place + 1


def code(text: str, place: int) -> tuple[Token, int]:
    opening = TICKS.match(text, place)
    assert opening is not None  # noqa: S101 - there is one
    for closing in TICKS.finditer(text, opening.end()):
        if len(closing[0]) == len(opening[0]):
            inside = text[opening.end() : closing.start()].replace("\n", " ")
            if inside.strip() and inside[0] == inside[-1] == " ":
                inside = inside[1:-1]
            return Span(CODE, (inside,)), closing.end()
    return opening[0], opening.end()


def link(text: str, place: int) -> tuple[Token, int] | None:
    """From its `[` on. Where it leads nowhere an app could follow, its words and its target."""
    end = closing_bracket(text, place)
    target = TARGET.match(text, end + 1) if end > 0 else None
    if target is None:
        return None
    url = html.unescape(target[1])
    words = inline(text[place + 1 : end])
    if url.lower().startswith(SCHEMES):
        return Span(LINK, words if any(words) else (url,), url), target.end()
    shown = f" ({url})" if url else ""
    return Span("", (*words, shown)), target.end()


def closing_bracket(text: str, place: int) -> int:
    """-1 where there is none in this line, or too many are inside one another."""
    depth = 0
    while place < len(text) and text[place] != "\n":
        match text[place]:
            case "\\":
                place += 1
            case "[" if depth == DEEPEST:
                return -1
            case "[":
                depth += 1
            case "]":
                depth -= 1
                if not depth:
                    return place
        place += 1
    return -1


def run(text: str, found: re.Match[str]) -> Run:
    before = text[found.start() - 1 : found.start()] if found.start() else " "
    after = text[found.end() : found.end() + 1] or " "
    is_left = not after.isspace() and (
        not is_punctuation(after) or before.isspace() or is_punctuation(before)
    )
    is_right = not before.isspace() and (
        not is_punctuation(before) or after.isspace() or is_punctuation(after)
    )
    can_open, can_close = is_left, is_right
    if found[0][0] == "_":  # inside of words it is a letter
        can_open = is_left and (not is_right or is_punctuation(before))
        can_close = is_right and (not is_left or is_punctuation(after))
    return Run(found[0][0], len(found[0]), can_open, can_close)


def is_punctuation(character: str) -> bool:
    return character in PUNCTUATION or not (character.isalnum() or character.isspace())


# ── Emphasis ───────────────────────────────────────────────────────────────────────────────────


def emphasised(found: list[Token]) -> tuple[Inline, ...]:
    """Pairs runs of marks, innermost first."""
    floors: dict[tuple[str, int, bool], int] = {}
    place = 0
    while place < len(found):
        closer = found[place]
        if not isinstance(closer, Run) or not closer.can_close:
            place += 1
            continue
        key = (closer.mark, closer.whole % 3, closer.can_open)
        start = opener_of(found, place, floors.get(key, 0))
        if start is None:
            floors[key] = place
            place += 1
        else:
            place = pair(found, start, place)
    return flat(found)


def opener_of(found: list[Token], place: int, floor: int) -> int | None:
    closer = found[place]
    assert isinstance(closer, Run)  # noqa: S101 - as it was looked at
    for start in range(place - 1, floor - 1, -1):
        opener = found[start]
        if not isinstance(opener, Run) or opener.mark != closer.mark or not opener.can_open:
            continue
        is_odd = (opener.can_close or closer.can_open) and (opener.whole + closer.whole) % 3 == 0
        if is_odd and (opener.whole % 3 or closer.whole % 3):
            continue
        return start
    return None


def pair(found: list[Token], start: int, place: int) -> int:
    """Makes one of what is between two runs. Where to go on."""
    opener, closer = found[start], found[place]
    assert isinstance(opener, Run)  # noqa: S101 - as they were looked at
    assert isinstance(closer, Run)  # noqa: S101
    count = 2 if min(opener.left, closer.left) > 1 else 1
    kind = STRIKE if opener.mark == "~" else (ITALIC, BOLD)[count - 1]
    opener.left -= count
    closer.left -= count
    found[start + 1 : place] = [Span(kind, flat(found[start + 1 : place]))]
    place = start + 2
    if not closer.left:
        del found[place]
    if not opener.left:
        del found[start]
        place -= 1
    return place


def flat(found: list[Token]) -> tuple[Inline, ...]:
    """With marks that mark nothing as text, and texts side by side as one."""
    made: list[Inline] = []
    for token in found:
        one = token.mark * token.left if isinstance(token, Run) else token
        if isinstance(one, str) and made and isinstance(made[-1], str):
            made[-1] += one
        elif one:
            made.append(one)
    return tuple(made)
