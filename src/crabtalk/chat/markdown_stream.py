"""MarkdownStream: an answer in markdown while it is being written, as lines for a terminal.

What is settled is given out once and never again: code line by line, tables row by row, paragraphs
as soon as no further word can change a line. However the text is cut up, and whenever lines are
taken, they are the same. What a piece of text costs does not depend on what came before it.
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

# With a blank line around them even if the text has none.
SPACED_KINDS = (LineKind.HEADING, LineKind.FENCE, LineKind.TABLE_ROW, LineKind.RULE)


class MarkdownStream:
    def __init__(self, look: Theme) -> None:
        self._theme = look
        self._partial_line = ""  # a line that has not been placed
        self._carriage_return = ""  # a carriage return of which it is not known what follows
        self._is_streaming_line = False  # the rest of the line goes where its beginning went
        self._containers: list[ContainerBlock] = []
        self._fence = CodeFence()
        self._leaf: LeafBlock | None = None
        self._table_header = ""  # a row that is a table's if a rule follows
        self._last_kind: LineKind | None = None
        self._has_blank_line = False  # since the last leaf
        self._blocks: deque[PlacedBlock] = deque()

    @property
    def is_between_blocks(self) -> bool:
        """Whether something else could be shown here without tearing anything apart."""
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
        """Nothing follows."""
        self._carriage_return = ""
        if self._partial_line or self._is_streaming_line:
            self._end_line()
        self._settle_header()
        self._close_leaf()
        self._set_containers(0, ())

    def take_lines(self, width: int) -> list[str]:
        """The lines that were settled since they were last taken."""
        lines: list[str] = []
        while self._blocks:
            placed = self._blocks[0]
            lines += placed.take_lines(width)
            if not placed.is_closed:
                break
            self._blocks.popleft()
        return lines

    def live_lines(self, width: int) -> list[str]:
        """The lines that can still change, as they are now. Take what is settled first."""
        if isinstance(self._leaf, MarkdownCodeBlock | MarkdownTable):
            self._leaf.partial = self._get_partial_content()
        lines = [line for placed in self._blocks for line in placed.live_lines(width)]
        if not isinstance(self._leaf, MarkdownCodeBlock | MarkdownTable):
            for text in (self._table_header, self._partial_line):
                lines += self._preview_line(text).live_lines(width) if text else []
        return lines

    def _get_partial_content(self) -> str:
        """What there is of the next line of code or of a table."""
        if not self._partial_line:
            return ""
        placement = parse_line(self._partial_line, self._get_open_blocks())
        is_inside = placement.matched == len(self._containers) and not placement.new_containers
        goes_on = placement.kind in (
            LineKind.FENCED_CODE,
            LineKind.INDENTED_CODE,
            LineKind.TABLE_ROW,
        )
        return self._fence.strip_indent(placement.text) if is_inside and goes_on else ""

    def _preview_line(self, line: str) -> PlacedBlock:
        """What a line would be if it ended here."""
        placement = parse_line(line, self._get_open_blocks())
        if placement.kind not in (LineKind.PARAGRAPH, LineKind.HEADING, LineKind.TABLE_ROW):
            return PlacedBlock(MarkdownParagraph(self._theme), [], [], None)
        containers = [*self._containers[: placement.matched], *placement.new_containers]
        leaf = self._create_paragraph(placement)
        return PlacedBlock(leaf, *self._build_prefixes(containers), gap=None)

    def _get_open_blocks(self) -> OpenBlocks:
        return OpenBlocks(
            self._containers, self._fence.mark, has_prose=isinstance(self._leaf, MarkdownParagraph)
        )

    def _feed_piece(self, text: str) -> None:
        """Of a line."""
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
        placement = parse_partial_line(self._partial_line, self._get_open_blocks())
        if placement is not None:
            self._is_streaming_line = True
            self._partial_line = ""
            self._apply_line(placement)

    def _end_line(self) -> None:
        if self._is_streaming_line:
            self._is_streaming_line = False
            self._extend_leaf("", is_whole=True)
            return
        line, self._partial_line = self._partial_line, ""
        if self._table_header:
            kept, text, _ = match_containers(line, self._containers)
            if kept == len(self._containers) and is_delimiter_row(text, self._table_header):
                header, self._table_header = self._table_header, ""
                self._open_leaf(MarkdownTable(self._theme, header, text), LineKind.TABLE_ROW, kept)
                return
            self._settle_header()
        placement = parse_line(line, self._get_open_blocks())
        self._apply_line(placement)

    def _extend_leaf(self, text: str, *, is_whole: bool) -> None:
        if isinstance(self._leaf, MarkdownCodeBlock):
            self._leaf.add_long_text(text, is_whole=is_whole)
        elif isinstance(self._leaf, MarkdownParagraph):
            self._leaf.feed(text)

    def _settle_header(self) -> None:
        """It was the header of nothing."""
        if self._table_header:
            header, self._table_header = self._table_header, ""
            prose = MarkdownParagraph(self._theme)
            prose.feed(header)
            self._open_leaf(prose, LineKind.PARAGRAPH, len(self._containers))

    def _apply_line(self, placement: ParsedLine) -> None:
        kept, opened, text = placement.matched, placement.new_containers, placement.text
        is_inside = kept == len(self._containers) and not opened
        match placement.kind:
            case LineKind.BLANK:
                self._close_leaf()
                self._set_containers(kept, opened)
                self._has_blank_line = self._has_blank_line or not opened
            case LineKind.PARAGRAPH if is_inside and isinstance(self._leaf, MarkdownParagraph):
                self._leaf.feed(f"\n{text}")
            case LineKind.PARAGRAPH | LineKind.TABLE_ROW if (
                is_inside and isinstance(self._leaf, MarkdownTable) and "|" in text
            ):
                self._leaf.add_row(text)
            case LineKind.PARAGRAPH:
                self._open_leaf(self._create_paragraph(placement), LineKind.PARAGRAPH, kept, opened)
            case LineKind.HEADING:
                self._open_leaf(self._create_paragraph(placement), LineKind.HEADING, kept, opened)
                self._close_leaf()
            case LineKind.FENCE:
                language = text.split()[0] if text else ""
                self._open_leaf(
                    MarkdownCodeBlock(self._theme, language), LineKind.FENCE, kept, opened
                )
                self._fence = CodeFence(placement.detail)
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
                    self._open_leaf(code, LineKind.FENCE, kept, opened)
                code.add_line(text)
            case LineKind.RULE:
                self._open_leaf(MarkdownRule(self._theme), LineKind.RULE, kept, opened)
                self._close_leaf()
            case LineKind.TABLE_ROW if is_header_row(text):
                self._close_leaf()
                self._set_containers(kept, opened)
                self._table_header = text
            case LineKind.TABLE_ROW:
                self._open_leaf(self._create_paragraph(placement), LineKind.PARAGRAPH, kept, opened)

    def _create_paragraph(self, placement: ParsedLine) -> MarkdownParagraph:
        styles, text = self._theme.styles, placement.text
        style = ""
        if placement.kind is LineKind.HEADING:
            style = styles.title if placement.detail == "#" else styles.heading
            if not self._theme.has_colour:
                text = f"{placement.detail} {text}"
        prose = MarkdownParagraph(self._theme, style)
        prose.feed(text)
        return prose

    def _open_leaf(
        self, leaf: LeafBlock, kind: LineKind, kept: int, opened: Sequence[ContainerBlock] = ()
    ) -> None:
        self._close_leaf()
        self._set_containers(kept, opened)
        wants_gap = (
            self._has_blank_line
            or self._last_kind in SPACED_KINDS
            or (kind in SPACED_KINDS and not opened)
        )
        gap = (
            self._build_prefixes(self._containers[:kept])[1]
            if wants_gap and self._last_kind
            else None
        )
        self._blocks.append(PlacedBlock(leaf, *self._build_prefixes(self._containers), gap))
        for container in self._containers:
            container.is_shown = True
        self._leaf, self._last_kind, self._has_blank_line = leaf, kind, False

    def _close_leaf(self) -> None:
        """The open leaf, which nothing is added to any more."""
        if self._leaf is not None:
            self._blocks[-1].is_closed = True
        self._leaf, self._fence = None, CodeFence()

    def _set_containers(self, kept: int, opened: Sequence[ContainerBlock]) -> None:
        """These containers and no others."""
        left = self._containers[kept:]
        if any(not container.is_shown and not container.is_quote for container in left):
            # An item with nothing in it.
            empty = PlacedBlock(
                MarkdownParagraph(self._theme), *self._build_prefixes(self._containers), gap=None
            )
            empty.is_closed = True
            self._blocks.append(empty)
            self._last_kind = LineKind.PARAGRAPH
        if left and opened:
            opened[0].continue_numbering(left[0])
        self._containers = [*self._containers[:kept], *opened]

    def _build_prefixes(
        self, containers: Sequence[ContainerBlock]
    ) -> tuple[list[Span], list[Span]]:
        """What stands before the first line, and before the others."""
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
    """What closes a block of code, and how far the one that opened it stood in."""

    __slots__ = ("_indent", "mark")

    def __init__(self, opening: str = "") -> None:
        self.mark = opening.lstrip()
        self._indent = len(opening) - len(self.mark)

    def strip_indent(self, line: str) -> str:
        """A line of the code, standing in by so much less."""
        blanks = len(line) - len(line.lstrip(" "))
        return line[min(blanks, self._indent) :]
