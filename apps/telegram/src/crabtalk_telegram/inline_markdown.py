"""Parses markdown inside a line: emphasis, code, links. Pure: text in, spans out.

It uses CommonMark's rules of emphasis, so `snake_case`, `2 * 3` and half-written words come out as
people expect. Syntax it does not know stays text.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

CODE, LINK, BOLD, ITALIC, STRIKE = "code", "link", "bold", "italic", "strike"

PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
SCHEMES = ("http://", "https://", "mailto:", "tg://")
# Nesting depth of brackets.
MAX_DEPTH = 16
TICKS_PATTERN = re.compile(r"`+")
RUN_PATTERN = re.compile(r"\*+|_+|~~")
ENTITY_PATTERN = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# Marks inside a URL belong to it.
ADDRESS_PATTERN = re.compile(r"https?://[^\s<>*`\[\]()]+(?:\([^\s()<>*`]*\)[^\s<>*`\[\]()]*)*")
ANGLE_LINK_PATTERN = re.compile(r"<((?:https?://|mailto:|tg://)[^\s<>]+)>")
LINK_TARGET_PATTERN = re.compile(
    r"\(\s*<?((?:[^\s()<>]|\([^\s()<>]*\))*)>?(?:\s+[\"'(][^\n]*?[\"')])?\s*\)"
)
PLAIN_PATTERN = re.compile(r"[^\\`!\[<&*_~h]+|h(?!ttps?://)")


@dataclass(frozen=True, slots=True)
class InlineSpan:
    """A code span has its text unparsed, as one child."""

    kind: str
    children: "tuple[Inline, ...]"
    url: str = ""


Inline: TypeAlias = str | InlineSpan


@dataclass(slots=True)
class DelimiterRun:
    """A run of marks that may begin or end an emphasis."""

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
    position = 0
    while position < len(text):
        match = PLAIN_PATTERN.match(text, position) or ADDRESS_PATTERN.match(text, position)
        if match is not None:
            end = position + len(match[0].rstrip("_~") if match.re is ADDRESS_PATTERN else match[0])
            yield text[position:end]
            position = end
            continue
        token, position = parse_special(text, position)
        yield token


def parse_special(text: str, position: int) -> tuple[Token, int]:
    """The token that begins with a special character, and the position after it."""
    character = text[position]
    if character == "\\" and text[position + 1 : position + 2] in PUNCTUATION:
        return text[position + 1], position + 2
    if character == "`":
        return parse_code_span(text, position)
    if (match := ANGLE_LINK_PATTERN.match(text, position)) is not None:
        return match[1], match.end()
    if (match := ENTITY_PATTERN.match(text, position)) is not None:
        return html.unescape(match[0]), match.end()
    is_image = text.startswith("![", position)
    if (character == "[" or is_image) and (
        link := parse_link(text, position + is_image)
    ) is not None:
        return link
    if (match := RUN_PATTERN.match(text, position)) is not None:
        return parse_run(text, match), match.end()
    return character, position + 1


def parse_code_span(text: str, position: int) -> tuple[Token, int]:
    opening = TICKS_PATTERN.match(text, position)
    assert opening is not None  # noqa: S101 - the caller has seen the backtick
    for closing in TICKS_PATTERN.finditer(text, opening.end()):
        if len(closing[0]) == len(opening[0]):
            inside = text[opening.end() : closing.start()].replace("\n", " ")
            if inside.strip() and inside[0] == inside[-1] == " ":
                inside = inside[1:-1]
            return InlineSpan(CODE, (inside,)), closing.end()
    return opening[0], opening.end()


def parse_link(text: str, position: int) -> tuple[Token, int] | None:
    """Parse a link from its `[` on. A target with an unknown scheme is shown as text."""
    end = find_closing_bracket(text, position)
    target = LINK_TARGET_PATTERN.match(text, end + 1) if end > 0 else None
    if target is None:
        return None
    url = html.unescape(target[1])
    words = parse_inline(text[position + 1 : end])
    if url.lower().startswith(SCHEMES):
        return InlineSpan(LINK, words if any(words) else (url,), url), target.end()
    suffix = f" ({url})" if url else ""
    return InlineSpan("", (*words, suffix)), target.end()


def find_closing_bracket(text: str, position: int) -> int:
    """-1 if there is none in this line, or the brackets are nested too deeply."""
    depth = 0
    while position < len(text) and text[position] != "\n":
        match text[position]:
            case "\\":
                position += 1
            case "[" if depth == MAX_DEPTH:
                return -1
            case "[":
                depth += 1
            case "]":
                depth -= 1
                if not depth:
                    return position
        position += 1
    return -1


def parse_run(text: str, match: re.Match[str]) -> DelimiterRun:
    before = text[match.start() - 1 : match.start()] if match.start() else " "
    after = text[match.end() : match.end() + 1] or " "
    is_left = not after.isspace() and (
        not is_punctuation(after) or before.isspace() or is_punctuation(before)
    )
    is_right = not before.isspace() and (
        not is_punctuation(before) or after.isspace() or is_punctuation(after)
    )
    can_open, can_close = is_left, is_right
    if match[0][0] == "_":  # inside a word it is a letter
        can_open = is_left and (not is_right or is_punctuation(before))
        can_close = is_right and (not is_left or is_punctuation(after))
    return DelimiterRun(match[0][0], len(match[0]), can_open, can_close)


def is_punctuation(character: str) -> bool:
    return character in PUNCTUATION or not (character.isalnum() or character.isspace())


# ── Emphasis ───────────────────────────────────────────────────────────────────────────────────


def pair_delimiters(tokens: list[Token]) -> tuple[Inline, ...]:
    """Pair runs of marks, innermost first."""
    floors: dict[tuple[str, int, bool], int] = {}
    position = 0
    while position < len(tokens):
        closer = tokens[position]
        if not isinstance(closer, DelimiterRun) or not closer.can_close:
            position += 1
            continue
        key = (closer.mark, closer.length % 3, closer.can_open)
        start = find_opener(tokens, position, floors.get(key, 0))
        if start is None:
            floors[key] = position
            position += 1
        else:
            position = pair_runs(tokens, start, position)
    return flatten_tokens(tokens)


def find_opener(tokens: list[Token], position: int, floor: int) -> int | None:
    closer = tokens[position]
    assert isinstance(closer, DelimiterRun)  # noqa: S101 - the caller has checked it
    for start in range(position - 1, floor - 1, -1):
        opener = tokens[start]
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


def pair_runs(tokens: list[Token], start: int, position: int) -> int:
    """Make one span of the tokens between two runs. Returns the position to go on from."""
    opener, closer = tokens[start], tokens[position]
    assert isinstance(opener, DelimiterRun)  # noqa: S101 - the caller has checked them
    assert isinstance(closer, DelimiterRun)  # noqa: S101
    count = 2 if min(opener.remaining, closer.remaining) > 1 else 1
    kind = STRIKE if opener.mark == "~" else (ITALIC, BOLD)[count - 1]
    opener.remaining -= count
    closer.remaining -= count
    tokens[start + 1 : position] = [InlineSpan(kind, flatten_tokens(tokens[start + 1 : position]))]
    position = start + 2
    if not closer.remaining:
        del tokens[position]
    if not opener.remaining:
        del tokens[start]
        position -= 1
    return position


def flatten_tokens(tokens: list[Token]) -> tuple[Inline, ...]:
    """Turn unpaired marks into text, and join adjacent texts."""
    inlines: list[Inline] = []
    for token in tokens:
        inline = token.mark * token.remaining if isinstance(token, DelimiterRun) else token
        if isinstance(inline, str) and inlines and isinstance(inlines[-1], str):
            inlines[-1] += inline
        elif inline:
            inlines.append(inline)
    return tuple(inlines)
