"""Markdown as Telegram shows it: MarkdownV2, and the bare text of it. Pure.

What Telegram has no form for is shown as near as can be: headings are bold, lists have bullets,
tables are columns of fixed width. The text that is seen is the same in both.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .inline_markdown import BOLD, CODE, ITALIC, LINK, STRIKE, Inline, InlineSpan, parse_inline

# Telegram's, each of which means itself behind a backslash only.
RESERVED_PATTERN = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
CODE_ESCAPE_PATTERN = re.compile(r"([`\\])")
URL_ESCAPE_PATTERN = re.compile(r"([)\\])")
MARKS = {BOLD: "*", ITALIC: "_", STRIKE: "~"}

FENCE_PATTERN = re.compile(r"(\s*)(`{3,}|~{3,})[ \t]*([^\n]*)")
HEADING_PATTERN = re.compile(r" {0,3}#{1,6}[ \t]+(.*)")
RULE_PATTERN = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})")
QUOTE_PATTERN = re.compile(r" {0,3}>[ \t]?(.*)")
ITEM_PATTERN = re.compile(r"(\s*)(?:[-*+]|(\d{1,9}[.)]))[ \t]+(.*)")
TASK_PATTERN = re.compile(r"\[([ xX])\][ \t]+(.*)")
DIVIDER_PATTERN = re.compile(r"\|?(?:\s*:?-+:?\s*\|)+(?:\s*:?-+:?)?")
LANGUAGE_PATTERN = re.compile(r"[\w+#.-]{1,32}")
CELL_PATTERN = re.compile(r"(?<!\\)\|")
RULE_LINE = "———"
# Columns that make a table so many times longer than it was written are left out.
MAX_TABLE_GROWTH = 2


@dataclass(frozen=True, slots=True)
class TelegramParagraph:
    children: tuple[Inline, ...]


@dataclass(frozen=True, slots=True)
class TelegramQuote:
    children: tuple[Inline, ...]  # of one line


@dataclass(frozen=True, slots=True)
class TelegramPreformatted:
    code: str
    language: str = ""


Block: TypeAlias = TelegramParagraph | TelegramQuote | TelegramPreformatted


def render_markdown_v2(text: str) -> str:
    """As MarkdownV2."""
    return "\n".join(map(render_block, parse_blocks(text)))


def render_plain(text: str) -> str:
    """What is seen of it."""
    return "\n".join(
        block.code
        if isinstance(block, TelegramPreformatted)
        else render_plain_inline(block.children)
        for block in parse_blocks(text)
    )


def has_table(text: str) -> bool:
    """Whether what is seen may be longer than what was written."""
    return "|" in text and any(map(is_divider, text.split("\n")))


# ── Writing ────────────────────────────────────────────────────────────────────────────────────


def render_block(block: Block) -> str:
    match block:
        case TelegramPreformatted(code, language):
            return (
                f"```{language}\n{CODE_ESCAPE_PATTERN.sub(escape_match, code)}```" if code else ""
            )
        case TelegramQuote(inside):
            return f">{render_inline(inside)}"
        case TelegramParagraph(inside):
            return render_inline(inside)


def render_inline(inside: tuple[Inline, ...], within: frozenset[str] = frozenset()) -> str:
    made = ""
    for one in inside:
        piece = (
            RESERVED_PATTERN.sub(escape_match, one)
            if isinstance(one, str)
            else render_span(one, within)
        )
        # Two of these side by side would begin an underlining; nothing, in bold, divides them.
        is_double = made.endswith("_") and piece.startswith("_") and not ends_with_escape(made)
        made += f"**{piece}" if is_double else piece
    return made


def render_span(span: InlineSpan, within: frozenset[str]) -> str:
    if span.kind == CODE:
        return f"`{CODE_ESCAPE_PATTERN.sub(escape_match, render_plain_inline(span.children))}`"
    if span.kind in within:
        return render_inline(span.children, within)
    inside = render_inline(span.children, within | {span.kind} if span.kind else within)
    if span.kind == LINK:
        return f"[{inside}]({URL_ESCAPE_PATTERN.sub(escape_match, span.url)})" if inside else ""
    mark = MARKS.get(span.kind, "")
    return f"{mark}{inside}{mark}" if inside else ""


def render_plain_inline(inside: tuple[Inline, ...]) -> str:
    return "".join(
        one if isinstance(one, str) else render_plain_inline(one.children) for one in inside
    )


def escape_match(found: re.Match[str]) -> str:
    return f"\\{found[1]}"


def ends_with_escape(text: str) -> bool:
    """Whether the last character stands for itself."""
    return (len(text) - 1 - len(text[:-1].rstrip("\\"))) % 2 == 1


# ── Reading ────────────────────────────────────────────────────────────────────────────────────


def parse_blocks(text: str) -> Iterator[Block]:
    lines = text.replace("\r\n", "\n").split("\n")
    paragraph: list[str] = []
    place = 0
    while place < len(lines):
        found, end = parse_block(lines, place)
        if found is None:
            paragraph.append(lines[place])
            place += 1
            continue
        if paragraph:
            yield TelegramParagraph(parse_inline("\n".join(paragraph)))
            paragraph = []
        yield from found
        place = end
    if paragraph:
        yield TelegramParagraph(parse_inline("\n".join(paragraph)))


def parse_block(lines: list[str], place: int) -> tuple[list[Block] | None, int]:
    """What begins at a line, and the line after it. None for a line of a paragraph."""
    line = lines[place]
    if not line.strip():
        return [TelegramParagraph(())], place + 1
    if is_fence(line):
        return parse_fenced(lines, place)
    if place + 1 < len(lines) and "|" in line and is_divider(lines[place + 1]):
        return parse_table(lines, place)
    if (found := HEADING_PATTERN.fullmatch(line)) is not None:
        return [
            TelegramParagraph((InlineSpan(BOLD, parse_inline(parse_title(found[1]))),))
        ], place + 1
    if RULE_PATTERN.fullmatch(line):
        return [TelegramParagraph((RULE_LINE,))], place + 1
    if (found := QUOTE_PATTERN.fullmatch(line)) is not None:
        return [TelegramQuote(parse_item(found[1]) or parse_inline(found[1]))], place + 1
    if inside := parse_item(line):
        return [TelegramParagraph(inside)], place + 1
    return None, place + 1


def parse_title(text: str) -> str:
    """Without the marks that may close it."""
    before = text.rstrip().rstrip("#")
    return before.rstrip() if before[-1:].isspace() or not before else text.rstrip()


def parse_item(line: str) -> tuple[Inline, ...]:
    """One of a list. Empty for any other line."""
    found = ITEM_PATTERN.fullmatch(line)
    if found is None:
        return ()
    space, number, words = found[1].replace("\t", " "), found[2], found[3]
    if (task := TASK_PATTERN.fullmatch(words)) is not None:
        return (f"{space}{'☐' if task[1] == ' ' else '☑'} ", *parse_inline(task[2]))
    return (f"{space}{number or '•'} ", *parse_inline(words))


def is_fence(line: str) -> bool:
    found = FENCE_PATTERN.fullmatch(line)
    return found is not None and not (found[2][0] == "`" and "`" in found[3])


def parse_fenced(lines: list[str], place: int) -> tuple[list[Block], int]:
    """A code block, to its end or that of the text."""
    opening = FENCE_PATTERN.fullmatch(lines[place])
    assert opening is not None  # noqa: S101 - as it was looked at
    indent, marks, info = opening[1], opening[2], opening[3].split()
    end = place + 1
    while end < len(lines) and not closes_fence(lines[end], marks):
        end += 1
    code = "\n".join(line.removeprefix(indent) for line in lines[place + 1 : end])
    language = info[0] if info and LANGUAGE_PATTERN.fullmatch(info[0]) else ""
    return [TelegramPreformatted(code, language)], end + 1


def closes_fence(line: str, marks: str) -> bool:
    shown = line.strip()
    return len(shown) >= len(marks) and set(shown) == {marks[0]}


def parse_table(lines: list[str], place: int) -> tuple[list[Block], int]:
    end = place + 2
    while end < len(lines) and "|" in lines[end]:
        end += 1
    written = [lines[place], *lines[place + 2 : end]]
    rows = [
        [render_plain_inline(parse_inline(cell)) for cell in split_cells(line)] for line in written
    ]
    widths = [
        max(measure_width(row[column]) for row in rows if column < len(row))
        for column in range(max(map(len, rows)))
    ]
    shown = [align_row(rows[0], widths), "-+-".join("-" * wide for wide in widths)]
    shown += [align_row(row, widths) for row in rows[1:]]
    code, before = "\n".join(shown), "\n".join(lines[place:end])
    return [
        TelegramPreformatted(code if len(code) <= MAX_TABLE_GROWTH * len(before) else before)
    ], end


def is_divider(line: str) -> bool:
    return "-" in line and DIVIDER_PATTERN.fullmatch(line.strip()) is not None


def split_cells(line: str) -> list[str]:
    inside = line.strip().removeprefix("|")
    inside = inside[:-1] if inside.endswith("|") and not inside.endswith("\\|") else inside
    return [cell.strip().replace("\\|", "|") for cell in CELL_PATTERN.split(inside)]


def align_row(row: list[str], widths: list[int]) -> str:
    padded = [
        cell + " " * (wide - measure_width(cell)) for cell, wide in zip(row, widths, strict=False)
    ]
    return " | ".join(padded).rstrip()


def measure_width(text: str) -> int:
    """In columns, as a fixed-width font has them."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
