"""MarkdownStream: an answer in markdown while it is being written, as lines for a terminal.

What is settled is given out once and never again: code line by line, tables row by row, paragraphs
as soon as no further word can change a line. However the text is cut up, and whenever lines are
taken, they are the same. What a piece of text costs does not depend on what came before it.
"""

from collections import deque
from collections.abc import Sequence

from crabtalk.component.command import visible

from .flow import Span, cells
from .grid import Grid, is_header, is_rule
from .leaves import Code, Leaf, Placed, Prose, Rule
from .look import Look
from .placement import LONG, Container, Kind, Open, Placement, keep, place, place_begun

# With a blank line around them even if the text has none.
SET_OFF = (Kind.HEADING, Kind.FENCE, Kind.BARS, Kind.RULE)


class MarkdownStream:
    def __init__(self, look: Look) -> None:
        self._look = look
        self._partial = ""  # a line that has not been placed
        self._return = ""  # a carriage return of which it is not known what follows
        self._flowing = False  # the rest of the line goes where its beginning went
        self._containers: list[Container] = []
        self._fence = Fence()
        self._leaf: Leaf | None = None
        self._header = ""  # a row that is a table's if a rule follows
        self._last: Kind | None = None
        self._blank = False  # since the last leaf
        self._placed: deque[Placed] = deque()

    @property
    def is_at_rest(self) -> bool:
        """Whether something else could be shown here without tearing anything apart."""
        return not (self._partial or self._leaf or self._placed or self._containers)

    def feed(self, text: str) -> None:
        text = self._return + text
        self._return = "\r" if text.endswith("\r") else ""
        text = visible(text.removesuffix("\r"), layout=True).replace("\r\n", "\n")
        first, *others = text.split("\n")
        self._piece(first)
        for line in others:
            self._line_end()
            self._piece(line)

    def finish(self) -> None:
        """Nothing follows."""
        self._return = ""
        if self._partial or self._flowing:
            self._line_end()
        self._settle_header()
        self._close()
        self._hold(0, ())

    def take(self, width: int) -> list[str]:
        """The lines that were settled since they were last taken."""
        lines: list[str] = []
        while self._placed:
            placed = self._placed[0]
            lines += placed.take(width)
            if not placed.is_closed:
                break
            self._placed.popleft()
        return lines

    def live(self, width: int) -> list[str]:
        """The lines that can still change, as they are now. Take what is settled first."""
        if isinstance(self._leaf, Code | Grid):
            self._leaf.partial = self._begun()
        lines = [line for placed in self._placed for line in placed.live(width)]
        if not isinstance(self._leaf, Code | Grid):
            for text in (self._header, self._partial):
                lines += self._preview(text).live(width) if text else []
        return lines

    def _begun(self) -> str:
        """What there is of the next line of code or of a table."""
        if not self._partial:
            return ""
        placement = place(self._partial, self._state())
        is_inside = placement.kept == len(self._containers) and not placement.opened
        goes_on = placement.kind in (Kind.FENCED, Kind.INDENTED, Kind.BARS)
        return self._fence.text(placement.text) if is_inside and goes_on else ""

    def _preview(self, line: str) -> Placed:
        """What a line would be if it ended here."""
        placement = place(line, self._state())
        if placement.kind not in (Kind.PROSE, Kind.HEADING, Kind.BARS):
            return Placed(Prose(self._look), [], [], None)
        containers = [*self._containers[: placement.kept], *placement.opened]
        leaf = self._prose(placement)
        return Placed(leaf, *self._before(containers), gap=None)

    def _state(self) -> Open:
        return Open(self._containers, self._fence.mark, has_prose=isinstance(self._leaf, Prose))

    def _piece(self, text: str) -> None:
        """Of a line."""
        if not text:
            return
        if self._flowing:
            self._flow_on(text, is_whole=False)
            return
        self._partial += text
        is_long = len(self._partial) > LONG
        if not is_long and (self._header or isinstance(self._leaf, Grid)):
            return
        self._settle_header()
        placement = place_begun(self._partial, self._state())
        if placement is not None:
            self._flowing = True
            self._partial = ""
            self._apply(placement)

    def _line_end(self) -> None:
        if self._flowing:
            self._flowing = False
            self._flow_on("", is_whole=True)
            return
        line, self._partial = self._partial, ""
        if self._header:
            kept, text, _ = keep(line, self._containers)
            if kept == len(self._containers) and is_rule(text, self._header):
                header, self._header = self._header, ""
                self._add(Grid(self._look, header, text), Kind.BARS, kept)
                return
            self._settle_header()
        placement = place(line, self._state())
        self._apply(placement)

    def _flow_on(self, text: str, *, is_whole: bool) -> None:
        if isinstance(self._leaf, Code):
            self._leaf.add_long(text, is_whole=is_whole)
        elif isinstance(self._leaf, Prose):
            self._leaf.feed(text)

    def _settle_header(self) -> None:
        """It was the header of nothing."""
        if self._header:
            header, self._header = self._header, ""
            prose = Prose(self._look)
            prose.feed(header)
            self._add(prose, Kind.PROSE, len(self._containers))

    def _apply(self, placement: Placement) -> None:
        kept, opened, text = placement.kept, placement.opened, placement.text
        is_inside = kept == len(self._containers) and not opened
        match placement.kind:
            case Kind.BLANK:
                self._close()
                self._hold(kept, opened)
                self._blank = self._blank or not opened
            case Kind.PROSE if is_inside and isinstance(self._leaf, Prose):
                self._leaf.feed(f"\n{text}")
            case Kind.PROSE | Kind.BARS if (
                is_inside and isinstance(self._leaf, Grid) and "|" in text
            ):
                self._leaf.add(text)
            case Kind.PROSE:
                self._add(self._prose(placement), Kind.PROSE, kept, opened)
            case Kind.HEADING:
                self._add(self._prose(placement), Kind.HEADING, kept, opened)
                self._close()
            case Kind.FENCE:
                language = text.split()[0] if text else ""
                self._add(Code(self._look, language), Kind.FENCE, kept, opened)
                self._fence = Fence(placement.detail)
            case Kind.FENCED if isinstance(self._leaf, Code):
                if self._flowing:
                    self._leaf.add_long(self._fence.text(text), is_whole=False)
                else:
                    self._leaf.add(self._fence.text(text))
            case Kind.FENCE_END:
                self._close()
            case Kind.INDENTED:
                code = self._leaf if is_inside else None
                if not isinstance(code, Code):
                    code = Code(self._look)
                    self._add(code, Kind.FENCE, kept, opened)
                code.add(text)
            case Kind.RULE:
                self._add(Rule(self._look), Kind.RULE, kept, opened)
                self._close()
            case Kind.BARS if is_header(text):
                self._close()
                self._hold(kept, opened)
                self._header = text
            case Kind.BARS:
                self._add(self._prose(placement), Kind.PROSE, kept, opened)

    def _prose(self, placement: Placement) -> Prose:
        styles, text = self._look.styles, placement.text
        style = ""
        if placement.kind is Kind.HEADING:
            style = styles.title if placement.detail == "#" else styles.heading
            if not self._look.has_colour:
                text = f"{placement.detail} {text}"
        prose = Prose(self._look, style)
        prose.feed(text)
        return prose

    def _add(self, leaf: Leaf, kind: Kind, kept: int, opened: Sequence[Container] = ()) -> None:
        self._close()
        self._hold(kept, opened)
        wants_gap = self._blank or self._last in SET_OFF or (kind in SET_OFF and not opened)
        gap = self._before(self._containers[:kept])[1] if wants_gap and self._last else None
        self._placed.append(Placed(leaf, *self._before(self._containers), gap))
        for container in self._containers:
            container.is_shown = True
        self._leaf, self._last, self._blank = leaf, kind, False

    def _close(self) -> None:
        """The open leaf, which nothing is added to any more."""
        if self._leaf is not None:
            self._placed[-1].is_closed = True
        self._leaf, self._fence = None, Fence()

    def _hold(self, kept: int, opened: Sequence[Container]) -> None:
        """These containers and no others."""
        left = self._containers[kept:]
        if any(not container.is_shown and not container.is_quote for container in left):
            # An item with nothing in it.
            empty = Placed(Prose(self._look), *self._before(self._containers), gap=None)
            empty.is_closed = True
            self._placed.append(empty)
            self._last = Kind.PROSE
        if left and opened:
            opened[0].follow(left[0])
        self._containers = [*self._containers[:kept], *opened]

    def _before(self, containers: Sequence[Container]) -> tuple[list[Span], list[Span]]:
        """What stands before the first line, and before the others."""
        first: list[Span] = []
        others: list[Span] = []
        depth = 0
        for container in containers:
            if container.is_quote:
                bar = (f"{self._look.glyphs.quote} ", self._look.styles.dim)
                first.append(bar)
                others.append(bar)
                continue
            mark = f"{self._mark(container, depth)} "
            depth += container.number is None
            space = (" " * cells(mark), "")
            first.append(space if container.is_shown else (mark, ""))
            others.append(space)
        return first, others

    def _mark(self, item: Container, depth: int) -> str:
        glyphs = self._look.glyphs
        if item.is_done is not None:
            return glyphs.checked if item.is_done else glyphs.unchecked
        if item.number is not None:
            return f"{item.number}{item.mark[-1]}"
        return glyphs.bullets[depth % len(glyphs.bullets)]


class Fence:
    """What closes a block of code, and how far the one that opened it stood in."""

    __slots__ = ("_indent", "mark")

    def __init__(self, opening: str = "") -> None:
        self.mark = opening.lstrip()
        self._indent = len(opening) - len(self.mark)

    def text(self, line: str) -> str:
        """A line of the code, standing in by so much less."""
        blanks = len(line) - len(line.lstrip(" "))
        return line[min(blanks, self._indent) :]
