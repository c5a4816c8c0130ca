"""Render an answer in Markdown while it is being written, as lines for a terminal.

Settled lines are given out once: code line by line, tables row by row, paragraphs as soon as no
further word can change a line. The lines do not depend on how the text is split or when they are
taken. The cost of a piece of text does not depend on the length of the text before it.
"""

from collections import deque
from collections.abc import Sequence

from crabtalk.service.command_line import escape_controls

from .block_parser import (
    MAX_LINE,
    ContainerBlock,
    LineKind,
    OpenBlocks,
    ParsedLine,
    match_containers,
    parse_line,
    parse_partial_line,
)
from .leaf_blocks import LeafBlock, MarkdownCodeBlock, MarkdownParagraph, MarkdownRule, PlacedBlock
from .line_wrapping import Span, measure_text
from .tables import MarkdownTable, is_delimiter_row, is_header_row
from .theme import Theme

# These have a blank line around them even if the text has none.
SPACED_KINDS = (LineKind.HEADING, LineKind.FENCE, LineKind.TABLE_ROW, LineKind.RULE)


class MarkdownStream:
    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        self._partial_line = ""  # a line that cannot be parsed yet
        self._carriage_return = ""  # a final carriage return: a newline may follow
        self._is_streaming_line = False  # the rest of the line goes to the same leaf
        self._containers: list[ContainerBlock] = []
        self._fence = CodeFence()
        self._leaf: LeafBlock | None = None
        self._table_header = ""  # a header if a delimiter row follows
        self._last_kind: LineKind | None = None
        self._has_blank_line = False  # since the last leaf
        self._blocks: deque[PlacedBlock] = deque()

    @property
    def is_between_blocks(self) -> bool:
        """Whether other output could be shown here without splitting a block."""
        return not (self._partial_line or self._leaf or self._blocks or self._containers)

    def feed(self, text: str) -> None:
        text = self._carriage_return + text
        self._carriage_return = "\r" if text.endswith("\r") else ""
        text = escape_controls(text.removesuffix("\r"), layout=True).replace("\r\n", "\n")
        first, *others = text.split("\n")
        self._feed_piece(first)
        for line in others:
            self._end_line()
            self._feed_piece(line)

    def finish(self) -> None:
        """End the document: no text follows."""
        self._carriage_return = ""
        if self._partial_line or self._is_streaming_line:
            self._end_line()
        self._settle_header()
        self._close_leaf()
        self._set_containers(0, ())

    def take_lines(self, width: int) -> list[str]:
        """Take the lines that were settled since the last call."""
        lines: list[str] = []
        while self._blocks:
            placed = self._blocks[0]
            lines += placed.take_lines(width)
            if not placed.is_closed:
                break
            self._blocks.popleft()
        return lines

    def live_lines(self, width: int) -> list[str]:
        """Render the lines that can still change. Take the settled lines first."""
        if isinstance(self._leaf, MarkdownCodeBlock | MarkdownTable):
            self._leaf.partial = self._get_partial_content()
        lines = [line for placed in self._blocks for line in placed.live_lines(width)]
        if not isinstance(self._leaf, MarkdownCodeBlock | MarkdownTable):
            for text in (self._table_header, self._partial_line):
                lines += self._preview_line(text).live_lines(width) if text else []
        return lines

    def _get_partial_content(self) -> str:
        """Return the beginning of the next line of code or of a table."""
        if not self._partial_line:
            return ""
        parsed = parse_line(self._partial_line, self._get_open_blocks())
        is_inside = parsed.matched == len(self._containers) and not parsed.new_containers
        goes_on = parsed.kind in (
            LineKind.FENCED_CODE,
            LineKind.INDENTED_CODE,
            LineKind.TABLE_ROW,
        )
        return self._fence.strip_indent(parsed.text) if is_inside and goes_on else ""

    def _preview_line(self, line: str) -> PlacedBlock:
        """Render a line as if it ended here."""
        parsed = parse_line(line, self._get_open_blocks())
        if parsed.kind not in (LineKind.PARAGRAPH, LineKind.HEADING, LineKind.TABLE_ROW):
            return PlacedBlock(MarkdownParagraph(self._theme), [], [], None)
        containers = [*self._containers[: parsed.matched], *parsed.new_containers]
        leaf = self._create_paragraph(parsed)
        return PlacedBlock(leaf, *self._build_prefixes(containers), gap=None)

    def _get_open_blocks(self) -> OpenBlocks:
        return OpenBlocks(
            self._containers, self._fence.mark, has_prose=isinstance(self._leaf, MarkdownParagraph)
        )

    def _feed_piece(self, text: str) -> None:
        """Feed a piece of one line."""
        if not text:
            return
        if self._is_streaming_line:
            self._extend_leaf(text, is_whole=False)
            return
        self._partial_line += text
        is_long = len(self._partial_line) > MAX_LINE
        if not is_long and (self._table_header or isinstance(self._leaf, MarkdownTable)):
            return
        self._settle_header()
        parsed = parse_partial_line(self._partial_line, self._get_open_blocks())
        if parsed is not None:
            self._is_streaming_line = True
            self._partial_line = ""
            self._apply_line(parsed)

    def _end_line(self) -> None:
        if self._is_streaming_line:
            self._is_streaming_line = False
            self._extend_leaf("", is_whole=True)
            return
        line, self._partial_line = self._partial_line, ""
        if self._table_header:
            matched, text, _ = match_containers(line, self._containers)
            if matched == len(self._containers) and is_delimiter_row(text, self._table_header):
                header, self._table_header = self._table_header, ""
                self._open_leaf(
                    MarkdownTable(self._theme, header, text), LineKind.TABLE_ROW, matched
                )
                return
            self._settle_header()
        parsed = parse_line(line, self._get_open_blocks())
        self._apply_line(parsed)

    def _extend_leaf(self, text: str, *, is_whole: bool) -> None:
        if isinstance(self._leaf, MarkdownCodeBlock):
            self._leaf.add_long_text(text, is_whole=is_whole)
        elif isinstance(self._leaf, MarkdownParagraph):
            self._leaf.feed(text)

    def _settle_header(self) -> None:
        """Turn a header that no delimiter row followed into prose."""
        if self._table_header:
            header, self._table_header = self._table_header, ""
            prose = MarkdownParagraph(self._theme)
            prose.feed(header)
            self._open_leaf(prose, LineKind.PARAGRAPH, len(self._containers))

    def _apply_line(self, parsed: ParsedLine) -> None:
        matched, new_containers, text = parsed.matched, parsed.new_containers, parsed.text
        is_inside = matched == len(self._containers) and not new_containers
        match parsed.kind:
            case LineKind.BLANK:
                self._close_leaf()
                self._set_containers(matched, new_containers)
                self._has_blank_line = self._has_blank_line or not new_containers
            case LineKind.PARAGRAPH if is_inside and isinstance(self._leaf, MarkdownParagraph):
                self._leaf.feed(f"\n{text}")
            case LineKind.PARAGRAPH | LineKind.TABLE_ROW if (
                is_inside and isinstance(self._leaf, MarkdownTable) and "|" in text
            ):
                self._leaf.add_row(text)
            case LineKind.PARAGRAPH:
                self._open_leaf(
                    self._create_paragraph(parsed), LineKind.PARAGRAPH, matched, new_containers
                )
            case LineKind.HEADING:
                self._open_leaf(
                    self._create_paragraph(parsed), LineKind.HEADING, matched, new_containers
                )
                self._close_leaf()
            case LineKind.FENCE:
                language = text.split()[0] if text else ""
                self._open_leaf(
                    MarkdownCodeBlock(self._theme, language),
                    LineKind.FENCE,
                    matched,
                    new_containers,
                )
                self._fence = CodeFence(parsed.detail)
            case LineKind.FENCED_CODE if isinstance(self._leaf, MarkdownCodeBlock):
                if self._is_streaming_line:
                    self._leaf.add_long_text(self._fence.strip_indent(text), is_whole=False)
                else:
                    self._leaf.add_line(self._fence.strip_indent(text))
            case LineKind.FENCE_END:
                self._close_leaf()
            case LineKind.INDENTED_CODE:
                code = self._leaf if is_inside else None
                if not isinstance(code, MarkdownCodeBlock):
                    code = MarkdownCodeBlock(self._theme)
                    self._open_leaf(code, LineKind.FENCE, matched, new_containers)
                code.add_line(text)
            case LineKind.RULE:
                self._open_leaf(MarkdownRule(self._theme), LineKind.RULE, matched, new_containers)
                self._close_leaf()
            case LineKind.TABLE_ROW if is_header_row(text):
                self._close_leaf()
                self._set_containers(matched, new_containers)
                self._table_header = text
            case LineKind.TABLE_ROW:
                self._open_leaf(
                    self._create_paragraph(parsed), LineKind.PARAGRAPH, matched, new_containers
                )

    def _create_paragraph(self, parsed: ParsedLine) -> MarkdownParagraph:
        styles, text = self._theme.styles, parsed.text
        style = ""
        if parsed.kind is LineKind.HEADING:
            style = styles.title if parsed.detail == "#" else styles.heading
            if not self._theme.has_colour:
                text = f"{parsed.detail} {text}"
        prose = MarkdownParagraph(self._theme, style)
        prose.feed(text)
        return prose

    def _open_leaf(
        self,
        leaf: LeafBlock,
        kind: LineKind,
        matched: int,
        new_containers: Sequence[ContainerBlock] = (),
    ) -> None:
        self._close_leaf()
        self._set_containers(matched, new_containers)
        wants_gap = (
            self._has_blank_line
            or self._last_kind in SPACED_KINDS
            or (kind in SPACED_KINDS and not new_containers)
        )
        gap = (
            self._build_prefixes(self._containers[:matched])[1]
            if wants_gap and self._last_kind
            else None
        )
        self._blocks.append(PlacedBlock(leaf, *self._build_prefixes(self._containers), gap))
        for container in self._containers:
            container.is_shown = True
        self._leaf, self._last_kind, self._has_blank_line = leaf, kind, False

    def _close_leaf(self) -> None:
        """Close the open leaf: nothing is added to it any more."""
        if self._leaf is not None:
            self._blocks[-1].is_closed = True
        self._leaf, self._fence = None, CodeFence()

    def _set_containers(self, matched: int, new_containers: Sequence[ContainerBlock]) -> None:
        """Keep the first `matched` containers, close the others, and open new ones."""
        closed = self._containers[matched:]
        if any(not container.is_shown and not container.is_quote for container in closed):
            # An empty list item.
            empty = PlacedBlock(
                MarkdownParagraph(self._theme), *self._build_prefixes(self._containers), gap=None
            )
            empty.is_closed = True
            self._blocks.append(empty)
            self._last_kind = LineKind.PARAGRAPH
        if closed and new_containers:
            new_containers[0].continue_numbering(closed[0])
        self._containers = [*self._containers[:matched], *new_containers]

    def _build_prefixes(
        self, containers: Sequence[ContainerBlock]
    ) -> tuple[list[Span], list[Span]]:
        """Return the prefix of the first line, and that of the others."""
        first: list[Span] = []
        others: list[Span] = []
        depth = 0
        for container in containers:
            if container.is_quote:
                bar = (f"{self._theme.glyphs.quote} ", self._theme.styles.dim)
                first.append(bar)
                others.append(bar)
                continue
            mark = f"{self._render_item_mark(container, depth)} "
            depth += container.number is None
            space = (" " * measure_text(mark), "")
            first.append(space if container.is_shown else (mark, ""))
            others.append(space)
        return first, others

    def _render_item_mark(self, item: ContainerBlock, depth: int) -> str:
        glyphs = self._theme.glyphs
        if item.is_done is not None:
            return glyphs.checked if item.is_done else glyphs.unchecked
        if item.number is not None:
            return f"{item.number}{item.mark[-1]}"
        return glyphs.bullets[depth % len(glyphs.bullets)]


class CodeFence:
    """The mark that closes a block of code, and the indentation of its opening fence."""

    __slots__ = ("_indent", "mark")

    def __init__(self, opening: str = "") -> None:
        self.mark = opening.lstrip()
        self._indent = len(opening) - len(self.mark)

    def strip_indent(self, line: str) -> str:
        """Remove the fence's indentation from a line of code."""
        blanks = len(line) - len(line.lstrip(" "))
        return line[min(blanks, self._indent) :]
