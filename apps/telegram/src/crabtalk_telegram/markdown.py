"""Renders markdown for Telegram: as MarkdownV2, and as plain text. Pure.

Syntax that Telegram lacks is approximated: headings are bold, lists have bullets, tables are
preformatted columns. The visible text is the same in both forms.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .inline_markdown import BOLD, CODE, ITALIC, LINK, STRIKE, Inline, InlineSpan, parse_inline

# Telegram's reserved characters. Each needs a backslash to stand for itself.
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
# A table that aligning would make longer than this factor is shown as it was written.
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
    """The visible text."""
    return "\n".join(
        block.code
        if isinstance(block, TelegramPreformatted)
        else render_plain_inline(block.children)
        for block in parse_blocks(text)
    )


def has_table(text: str) -> bool:
    """Whether the visible text may be longer than the markdown."""
    return "|" in text and any(map(is_divider, text.split("\n")))


# ── Rendering ──────────────────────────────────────────────────────────────────────────────────


def render_block(block: Block) -> str:
    match block:
        case TelegramPreformatted(code, language):
            return (
                f"```{language}\n{CODE_ESCAPE_PATTERN.sub(escape_match, code)}```" if code else ""
            )
        case TelegramQuote(children):
            return f">{render_inline(children)}"
        case TelegramParagraph(children):
            return render_inline(children)


def render_inline(children: tuple[Inline, ...], open_kinds: frozenset[str] = frozenset()) -> str:
    rendered = ""
    for child in children:
        piece = (
            RESERVED_PATTERN.sub(escape_match, child)
            if isinstance(child, str)
            else render_span(child, open_kinds)
        )
        # Two underscores side by side would begin an underline. An empty bold span separates them.
        is_double = (
            rendered.endswith("_") and piece.startswith("_") and not ends_with_escape(rendered)
        )
        rendered += f"**{piece}" if is_double else piece
    return rendered


def render_span(span: InlineSpan, open_kinds: frozenset[str]) -> str:
    if span.kind == CODE:
        return f"`{CODE_ESCAPE_PATTERN.sub(escape_match, render_plain_inline(span.children))}`"
    if span.kind in open_kinds:
        return render_inline(span.children, open_kinds)
    inside = render_inline(span.children, open_kinds | {span.kind} if span.kind else open_kinds)
    if span.kind == LINK:
        return f"[{inside}]({URL_ESCAPE_PATTERN.sub(escape_match, span.url)})" if inside else ""
    mark = MARKS.get(span.kind, "")
    return f"{mark}{inside}{mark}" if inside else ""


def render_plain_inline(children: tuple[Inline, ...]) -> str:
    return "".join(
        child if isinstance(child, str) else render_plain_inline(child.children)
        for child in children
    )


def escape_match(match: re.Match[str]) -> str:
    return f"\\{match[1]}"


def ends_with_escape(text: str) -> bool:
    """Whether the last character is escaped."""
    return (len(text) - 1 - len(text[:-1].rstrip("\\"))) % 2 == 1


# ── Parsing ────────────────────────────────────────────────────────────────────────────────────


def parse_blocks(text: str) -> Iterator[Block]:
    lines = text.replace("\r\n", "\n").split("\n")
    paragraph: list[str] = []
    position = 0
    while position < len(lines):
        blocks, end = parse_block(lines, position)
        if blocks is None:
            paragraph.append(lines[position])
            position += 1
            continue
        if paragraph:
            yield TelegramParagraph(parse_inline("\n".join(paragraph)))
            paragraph = []
        yield from blocks
        position = end
    if paragraph:
        yield TelegramParagraph(parse_inline("\n".join(paragraph)))


def parse_block(lines: list[str], position: int) -> tuple[list[Block] | None, int]:
    """The blocks that begin at a line, and the next line. None for a line of a paragraph."""
    line = lines[position]
    if not line.strip():
        return [TelegramParagraph(())], position + 1
    if is_fence(line):
        return parse_fenced(lines, position)
    if position + 1 < len(lines) and "|" in line and is_divider(lines[position + 1]):
        return parse_table(lines, position)
    if (match := HEADING_PATTERN.fullmatch(line)) is not None:
        return [
            TelegramParagraph((InlineSpan(BOLD, parse_inline(parse_title(match[1]))),))
        ], position + 1
    if RULE_PATTERN.fullmatch(line):
        return [TelegramParagraph((RULE_LINE,))], position + 1
    if (match := QUOTE_PATTERN.fullmatch(line)) is not None:
        return [TelegramQuote(parse_item(match[1]) or parse_inline(match[1]))], position + 1
    if item := parse_item(line):
        return [TelegramParagraph(item)], position + 1
    return None, position + 1


def parse_title(text: str) -> str:
    """The text of a heading without its closing marks."""
    before = text.rstrip().rstrip("#")
    return before.rstrip() if before[-1:].isspace() or not before else text.rstrip()


def parse_item(line: str) -> tuple[Inline, ...]:
    """Parse a list item. Empty for any other line."""
    match = ITEM_PATTERN.fullmatch(line)
    if match is None:
        return ()
    space, number, words = match[1].replace("\t", " "), match[2], match[3]
    if (task := TASK_PATTERN.fullmatch(words)) is not None:
        return (f"{space}{'☐' if task[1] == ' ' else '☑'} ", *parse_inline(task[2]))
    return (f"{space}{number or '•'} ", *parse_inline(words))


def is_fence(line: str) -> bool:
    match = FENCE_PATTERN.fullmatch(line)
    return match is not None and not (match[2][0] == "`" and "`" in match[3])


def parse_fenced(lines: list[str], position: int) -> tuple[list[Block], int]:
    """Parse a code block, to its end or to the end of the text."""
    opening = FENCE_PATTERN.fullmatch(lines[position])
    assert opening is not None  # noqa: S101 - the caller has checked it
    indent, marks, info = opening[1], opening[2], opening[3].split()
    end = position + 1
    while end < len(lines) and not closes_fence(lines[end], marks):
        end += 1
    code = "\n".join(line.removeprefix(indent) for line in lines[position + 1 : end])
    language = info[0] if info and LANGUAGE_PATTERN.fullmatch(info[0]) else ""
    return [TelegramPreformatted(code, language)], end + 1


def closes_fence(line: str, marks: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(marks) and set(stripped) == {marks[0]}


def parse_table(lines: list[str], position: int) -> tuple[list[Block], int]:
    end = position + 2
    while end < len(lines) and "|" in lines[end]:
        end += 1
    table_lines = [lines[position], *lines[position + 2 : end]]
    rows = [
        [render_plain_inline(parse_inline(cell)) for cell in split_cells(line)]
        for line in table_lines
    ]
    widths = [
        max(measure_width(row[column]) for row in rows if column < len(row))
        for column in range(max(map(len, rows)))
    ]
    aligned = [align_row(rows[0], widths), "-+-".join("-" * width for width in widths)]
    aligned += [align_row(row, widths) for row in rows[1:]]
    code, source = "\n".join(aligned), "\n".join(lines[position:end])
    return [
        TelegramPreformatted(code if len(code) <= MAX_TABLE_GROWTH * len(source) else source)
    ], end


def is_divider(line: str) -> bool:
    return "-" in line and DIVIDER_PATTERN.fullmatch(line.strip()) is not None


def split_cells(line: str) -> list[str]:
    content = line.strip().removeprefix("|")
    content = content[:-1] if content.endswith("|") and not content.endswith("\\|") else content
    return [cell.strip().replace("\\|", "|") for cell in CELL_PATTERN.split(content)]


def align_row(row: list[str], widths: list[int]) -> str:
    padded = [
        cell + " " * (width - measure_width(cell)) for cell, width in zip(row, widths, strict=False)
    ]
    return " | ".join(padded).rstrip()


def measure_width(text: str) -> int:
    """The width in columns of a fixed-width font."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
