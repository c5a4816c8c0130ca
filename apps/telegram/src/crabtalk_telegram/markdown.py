"""Markdown as Telegram shows it: MarkdownV2, and the bare text of it. Pure.

What Telegram has no form for is shown as near as can be: headings are bold, lists have bullets,
tables are columns of fixed width. The text that is seen is the same in both.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .inline import BOLD, CODE, ITALIC, LINK, STRIKE, Inline, Span, inline

# Telegram's, each of which means itself behind a backslash only.
RESERVED = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
IN_CODE = re.compile(r"([`\\])")
IN_URL = re.compile(r"([)\\])")
MARKS = {BOLD: "*", ITALIC: "_", STRIKE: "~"}

FENCE = re.compile(r"(\s*)(`{3,}|~{3,})[ \t]*([^\n]*)")
HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*)")
RULE = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})")
QUOTE = re.compile(r" {0,3}>[ \t]?(.*)")
ITEM = re.compile(r"(\s*)(?:[-*+]|(\d{1,9}[.)]))[ \t]+(.*)")
TASK = re.compile(r"\[([ xX])\][ \t]+(.*)")
DIVIDER = re.compile(r"\|?(?:\s*:?-+:?\s*\|)+(?:\s*:?-+:?)?")
LANGUAGE = re.compile(r"[\w+#.-]{1,32}")
CELL = re.compile(r"(?<!\\)\|")
LINE = "———"
# Columns that make a table so many times longer than it was written are left out.
WIDEST = 2


@dataclass(frozen=True, slots=True)
class Words:
    inside: tuple[Inline, ...]


@dataclass(frozen=True, slots=True)
class Quote:
    inside: tuple[Inline, ...]  # of one line


@dataclass(frozen=True, slots=True)
class Pre:
    code: str
    language: str = ""


Block: TypeAlias = Words | Quote | Pre


def marked(text: str) -> str:
    """As MarkdownV2."""
    return "\n".join(map(marked_block, blocks(text)))


def bare(text: str) -> str:
    """What is seen of it."""
    return "\n".join(
        block.code if isinstance(block, Pre) else bare_of(block.inside) for block in blocks(text)
    )


def has_table(text: str) -> bool:
    """Whether what is seen may be longer than what was written."""
    return "|" in text and any(map(is_divider, text.split("\n")))


# ── Writing ────────────────────────────────────────────────────────────────────────────────────


def marked_block(block: Block) -> str:
    match block:
        case Pre(code, language):
            return f"```{language}\n{IN_CODE.sub(escape, code)}```" if code else ""
        case Quote(inside):
            return f">{marked_of(inside)}"
        case Words(inside):
            return marked_of(inside)


def marked_of(inside: tuple[Inline, ...], within: frozenset[str] = frozenset()) -> str:
    made = ""
    for one in inside:
        piece = RESERVED.sub(escape, one) if isinstance(one, str) else marked_span(one, within)
        # Two of these side by side would begin an underlining; nothing, in bold, divides them.
        is_double = made.endswith("_") and piece.startswith("_") and not ends_escaped(made)
        made += f"**{piece}" if is_double else piece
    return made


def marked_span(span: Span, within: frozenset[str]) -> str:
    if span.kind == CODE:
        return f"`{IN_CODE.sub(escape, bare_of(span.inside))}`"
    if span.kind in within:
        return marked_of(span.inside, within)
    inside = marked_of(span.inside, within | {span.kind} if span.kind else within)
    if span.kind == LINK:
        return f"[{inside}]({IN_URL.sub(escape, span.url)})" if inside else ""
    mark = MARKS.get(span.kind, "")
    return f"{mark}{inside}{mark}" if inside else ""


def bare_of(inside: tuple[Inline, ...]) -> str:
    return "".join(one if isinstance(one, str) else bare_of(one.inside) for one in inside)


def escape(found: re.Match[str]) -> str:
    return f"\\{found[1]}"


def ends_escaped(text: str) -> bool:
    """Whether the last character stands for itself."""
    return (len(text) - 1 - len(text[:-1].rstrip("\\"))) % 2 == 1


# ── Reading ────────────────────────────────────────────────────────────────────────────────────


def blocks(text: str) -> Iterator[Block]:
    lines = text.replace("\r\n", "\n").split("\n")
    paragraph: list[str] = []
    place = 0
    while place < len(lines):
        found, end = block_at(lines, place)
        if found is None:
            paragraph.append(lines[place])
            place += 1
            continue
        if paragraph:
            yield Words(inline("\n".join(paragraph)))
            paragraph = []
        yield from found
        place = end
    if paragraph:
        yield Words(inline("\n".join(paragraph)))


def block_at(lines: list[str], place: int) -> tuple[list[Block] | None, int]:
    """What begins at a line, and the line after it. None for a line of a paragraph."""
    line = lines[place]
    if not line.strip():
        return [Words(())], place + 1
    if is_fence(line):
        return fenced(lines, place)
    if place + 1 < len(lines) and "|" in line and is_divider(lines[place + 1]):
        return table(lines, place)
    if (found := HEADING.fullmatch(line)) is not None:
        return [Words((Span(BOLD, inline(title(found[1]))),))], place + 1
    if RULE.fullmatch(line):
        return [Words((LINE,))], place + 1
    if (found := QUOTE.fullmatch(line)) is not None:
        return [Quote(item(found[1]) or inline(found[1]))], place + 1
    if inside := item(line):
        return [Words(inside)], place + 1
    return None, place + 1


def title(text: str) -> str:
    """Without the marks that may close it."""
    before = text.rstrip().rstrip("#")
    return before.rstrip() if before[-1:].isspace() or not before else text.rstrip()


def item(line: str) -> tuple[Inline, ...]:
    """One of a list. Empty for any other line."""
    found = ITEM.fullmatch(line)
    if found is None:
        return ()
    space, number, words = found[1].replace("\t", " "), found[2], found[3]
    if (task := TASK.fullmatch(words)) is not None:
        return (f"{space}{'☐' if task[1] == ' ' else '☑'} ", *inline(task[2]))
    return (f"{space}{number or '•'} ", *inline(words))


def is_fence(line: str) -> bool:
    found = FENCE.fullmatch(line)
    return found is not None and not (found[2][0] == "`" and "`" in found[3])


def fenced(lines: list[str], place: int) -> tuple[list[Block], int]:
    """A code block, to its end or that of the text."""
    opening = FENCE.fullmatch(lines[place])
    assert opening is not None  # noqa: S101 - as it was looked at
    indent, marks, info = opening[1], opening[2], opening[3].split()
    end = place + 1
    while end < len(lines) and not closes(lines[end], marks):
        end += 1
    code = "\n".join(line.removeprefix(indent) for line in lines[place + 1 : end])
    language = info[0] if info and LANGUAGE.fullmatch(info[0]) else ""
    return [Pre(code, language)], end + 1


def closes(line: str, marks: str) -> bool:
    shown = line.strip()
    return len(shown) >= len(marks) and set(shown) == {marks[0]}


def table(lines: list[str], place: int) -> tuple[list[Block], int]:
    end = place + 2
    while end < len(lines) and "|" in lines[end]:
        end += 1
    written = [lines[place], *lines[place + 2 : end]]
    rows = [[bare_of(inline(cell)) for cell in cells(line)] for line in written]
    widths = [
        max(width(row[column]) for row in rows if column < len(row))
        for column in range(max(map(len, rows)))
    ]
    shown = [aligned(rows[0], widths), "-+-".join("-" * wide for wide in widths)]
    shown += [aligned(row, widths) for row in rows[1:]]
    code, before = "\n".join(shown), "\n".join(lines[place:end])
    return [Pre(code if len(code) <= WIDEST * len(before) else before)], end


def is_divider(line: str) -> bool:
    return "-" in line and DIVIDER.fullmatch(line.strip()) is not None


def cells(line: str) -> list[str]:
    inside = line.strip().removeprefix("|")
    inside = inside[:-1] if inside.endswith("|") and not inside.endswith("\\|") else inside
    return [cell.strip().replace("\\|", "|") for cell in CELL.split(inside)]


def aligned(row: list[str], widths: list[int]) -> str:
    padded = [cell + " " * (wide - width(cell)) for cell, wide in zip(row, widths, strict=False)]
    return " | ".join(padded).rstrip()


def width(text: str) -> int:
    """In columns, as a fixed-width font has them."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
