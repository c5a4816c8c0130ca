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
MAX_DEPTH = 16
TICKS_PATTERN = re.compile(r"`+")
RUN_PATTERN = re.compile(r"\*+|_+|~~")
ENTITY_PATTERN = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# Marks inside an address belong to it.
ADDRESS_PATTERN = re.compile(r"https?://[^\s<>*`\[\]()]+(?:\([^\s()<>*`]*\)[^\s<>*`\[\]()]*)*")
ANGLE_LINK_PATTERN = re.compile(r"<((?:https?://|mailto:|tg://)[^\s<>]+)>")
LINK_TARGET_PATTERN = re.compile(
    r"\(\s*<?((?:[^\s()<>]|\([^\s()<>]*\))*)>?(?:\s+[\"'(][^\n]*?[\"')])?\s*\)"
)
PLAIN_PATTERN = re.compile(r"[^\\`!\[<&*_~h]+|h(?!ttps?://)")


@dataclass(frozen=True, slots=True)
class InlineSpan:
    """`inside` of code is one text as it is."""

    kind: str
    children: "tuple[Inline, ...]"
    url: str = ""


Inline: TypeAlias = str | InlineSpan


@dataclass(slots=True)
class DelimiterRun:
    """Marks that may begin or end an emphasis."""

    mark: str
    remaining: int
    can_open: bool
    can_close: bool
    length: int = 0

    def __post_init__(self) -> None:
        self.length = self.remaining


Token: TypeAlias = str | InlineSpan | DelimiterRun


def parse_inline(text: str) -> tuple[Inline, ...]:
    return pair_delimiters(list(iterate_tokens(text)))


# ── Tokens ─────────────────────────────────────────────────────────────────────────────────────


def iterate_tokens(text: str) -> Iterator[Token]:
    place = 0
    while place < len(text):
        found = PLAIN_PATTERN.match(text, place) or ADDRESS_PATTERN.match(text, place)
        if found is not None:
            end = place + len(found[0].rstrip("_~") if found.re is ADDRESS_PATTERN else found[0])
            yield text[place:end]
            place = end
            continue
        token, place = parse_special(text, place)
        yield token


def parse_special(text: str, place: int) -> tuple[Token, int]:
    """What begins with a character that may mean something, and where it ends."""
    character = text[place]
    if character == "\\" and text[place + 1 : place + 2] in PUNCTUATION:
        return text[place + 1], place + 2
    if character == "`":
        return parse_code_span(text, place)
    if (found := ANGLE_LINK_PATTERN.match(text, place)) is not None:
        return found[1], found.end()
    if (found := ENTITY_PATTERN.match(text, place)) is not None:
        return html.unescape(found[0]), found.end()
    is_image = text.startswith("![", place)
    if (character == "[" or is_image) and (made := parse_link(text, place + is_image)) is not None:
        return made
    if (found := RUN_PATTERN.match(text, place)) is not None:
        return parse_run(text, found), found.end()
    return character, place + 1


def parse_code_span(text: str, place: int) -> tuple[Token, int]:
    opening = TICKS_PATTERN.match(text, place)
    assert opening is not None  # noqa: S101 - there is one
    for closing in TICKS_PATTERN.finditer(text, opening.end()):
        if len(closing[0]) == len(opening[0]):
            inside = text[opening.end() : closing.start()].replace("\n", " ")
            if inside.strip() and inside[0] == inside[-1] == " ":
                inside = inside[1:-1]
            return InlineSpan(CODE, (inside,)), closing.end()
    return opening[0], opening.end()


def parse_link(text: str, place: int) -> tuple[Token, int] | None:
    """From its `[` on. Where it leads nowhere an app could follow, its words and its target."""
    end = find_closing_bracket(text, place)
    target = LINK_TARGET_PATTERN.match(text, end + 1) if end > 0 else None
    if target is None:
        return None
    url = html.unescape(target[1])
    words = parse_inline(text[place + 1 : end])
    if url.lower().startswith(SCHEMES):
        return InlineSpan(LINK, words if any(words) else (url,), url), target.end()
    shown = f" ({url})" if url else ""
    return InlineSpan("", (*words, shown)), target.end()


def find_closing_bracket(text: str, place: int) -> int:
    """-1 where there is none in this line, or too many are inside one another."""
    depth = 0
    while place < len(text) and text[place] != "\n":
        match text[place]:
            case "\\":
                place += 1
            case "[" if depth == MAX_DEPTH:
                return -1
            case "[":
                depth += 1
            case "]":
                depth -= 1
                if not depth:
                    return place
        place += 1
    return -1


def parse_run(text: str, found: re.Match[str]) -> DelimiterRun:
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
    return DelimiterRun(found[0][0], len(found[0]), can_open, can_close)


def is_punctuation(character: str) -> bool:
    return character in PUNCTUATION or not (character.isalnum() or character.isspace())


# ── Emphasis ───────────────────────────────────────────────────────────────────────────────────


def pair_delimiters(found: list[Token]) -> tuple[Inline, ...]:
    """Pairs runs of marks, innermost first."""
    floors: dict[tuple[str, int, bool], int] = {}
    place = 0
    while place < len(found):
        closer = found[place]
        if not isinstance(closer, DelimiterRun) or not closer.can_close:
            place += 1
            continue
        key = (closer.mark, closer.length % 3, closer.can_open)
        start = find_opener(found, place, floors.get(key, 0))
        if start is None:
            floors[key] = place
            place += 1
        else:
            place = pair_runs(found, start, place)
    return flatten_tokens(found)


def find_opener(found: list[Token], place: int, floor: int) -> int | None:
    closer = found[place]
    assert isinstance(closer, DelimiterRun)  # noqa: S101 - as it was looked at
    for start in range(place - 1, floor - 1, -1):
        opener = found[start]
        if (
            not isinstance(opener, DelimiterRun)
            or opener.mark != closer.mark
            or not opener.can_open
        ):
            continue
        is_odd = (opener.can_close or closer.can_open) and (opener.length + closer.length) % 3 == 0
        if is_odd and (opener.length % 3 or closer.length % 3):
            continue
        return start
    return None


def pair_runs(found: list[Token], start: int, place: int) -> int:
    """Makes one of what is between two runs. Where to go on."""
    opener, closer = found[start], found[place]
    assert isinstance(opener, DelimiterRun)  # noqa: S101 - as they were looked at
    assert isinstance(closer, DelimiterRun)  # noqa: S101
    count = 2 if min(opener.remaining, closer.remaining) > 1 else 1
    kind = STRIKE if opener.mark == "~" else (ITALIC, BOLD)[count - 1]
    opener.remaining -= count
    closer.remaining -= count
    found[start + 1 : place] = [InlineSpan(kind, flatten_tokens(found[start + 1 : place]))]
    place = start + 2
    if not closer.remaining:
        del found[place]
    if not opener.remaining:
        del found[start]
        place -= 1
    return place


def flatten_tokens(found: list[Token]) -> tuple[Inline, ...]:
    """With marks that mark nothing as text, and texts side by side as one."""
    made: list[Inline] = []
    for token in found:
        one = token.mark * token.remaining if isinstance(token, DelimiterRun) else token
        if isinstance(one, str) and made and isinstance(made[-1], str):
            made[-1] += one
        elif one:
            made.append(one)
    return tuple(made)
