"""Wrap styled text into lines of a given width. Knows neither Markdown nor the meaning of styles.

Text comes in pieces. A line is given out when no further text can change it, so lines do not depend
on how the text was split. Widths are terminal columns: East Asian characters take two, combining
characters none.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from wcwidth import wcwidth

Span = tuple[str, str]  # text and its style
LINE_BREAK = "\n"  # in a span's text: a new line, whatever its width

EMOJI_SELECTOR = "\ufe0f"  # requests the emoji form of a character, which takes two columns
ZERO_WIDTH_JOINER = "\u200d"
# Closing brackets and stops of scripts without spaces. They never begin a line.
CLOSING_PUNCTUATION = frozenset("、。，．！？；：）」』】〉》〕｝ー…‥々")  # noqa: RUF001 - meant as they are
MAX_CLUSTER = 16  # characters in one cluster: a bound for endless combining characters


def render_ansi(spans: Iterable[Span]) -> str:
    """Render spans with ANSI escapes; neighbours of the same style share theirs."""
    out: list[str] = []
    current = ""
    for text, style in spans:
        if not text:
            continue
        if style != current:
            out.append(f"\x1b[0;{style}m" if style and current else f"\x1b[{style or 0}m")
            current = style
        out.append(text)
    if current:
        out.append("\x1b[0m")
    return "".join(out)


def combine_styles(outer: str, inner: str) -> str:
    """Return both styles combined."""
    return f"{outer};{inner}" if outer and inner else outer or inner


def measure_text(text: str) -> int:
    """Return the number of columns of a text."""
    if text.isascii():
        return len(text)
    width = sum(map(measure_character, text))
    # Terminals disagree about emoji. A width too large leaves a gap, one too small breaks a line.
    return width + text.count(EMOJI_SELECTOR) if EMOJI_SELECTOR in text else width


@lru_cache(4096)
def measure_character(character: str) -> int:
    return max(0, wcwidth(character))


def is_combining(character: str) -> bool:
    """Whether the character combines with the one before it."""
    return not character.isascii() and measure_character(character) == 0


def split_clusters(text: str) -> list[str]:
    """Split into characters with their combining characters, which must not be separated."""
    if text.isascii():
        return list(text)
    clusters: list[str] = []
    for character in text:
        if (
            clusters
            and (is_combining(character) or clusters[-1].endswith(ZERO_WIDTH_JOINER))
            and len(clusters[-1]) < MAX_CLUSTER
        ):
            clusters[-1] += character
        else:
            clusters.append(character)
    return clusters


class StyledWord:
    """Text that is only broken if it is wider than a line.

    `space` is the style of the space before it, or None. With `is_break` it is only a line break.
    """

    __slots__ = ("_cells", "is_break", "length", "space", "spans")

    def __init__(self, space: str | None = None, *, is_break: bool = False) -> None:
        self.space = space
        self.is_break = is_break
        self.spans: list[Span] = []
        self.length = 0
        self._cells = 0

    @property
    def width(self) -> int:
        return max(self._cells, self.length // MAX_CLUSTER)

    def add(self, text: str, style: str) -> None:
        if self.spans and self.spans[-1][1] == style:
            self.spans[-1] = (self.spans[-1][0] + text, style)
        else:
            self.spans.append((text, style))
        self.length += len(text)
        self._cells += measure_text(text)

    def split_to_width(self, width: int) -> "list[StyledWord]":
        """Split into pieces that fit, each as long as possible."""
        pieces = [StyledWord(self.space)]
        for text, style in self.spans:
            for cluster in split_clusters(text):
                last = pieces[-1]
                if last.spans and not last.has_room(cluster, width):
                    pieces.append(last := StyledWord())
                last.add(cluster, style)
        return pieces

    def has_room(self, text: str, width: int) -> bool:
        return (
            max(self._cells + measure_text(text), (self.length + len(text)) // MAX_CLUSTER) <= width
        )

    def copy(self) -> "StyledWord":
        other = StyledWord(self.space, is_break=self.is_break)
        other.spans, other.length, other._cells = list(self.spans), self.length, self._cells
        return other

    def is_wide_at_end(self) -> bool:
        text = self.spans[-1][0]
        last = next((character for character in reversed(text) if not is_combining(character)), "")
        return bool(last) and measure_character(last) == 2


class LineWrapper:
    """Wraps text. Any whitespace counts as one space; only a LINE_BREAK span breaks a line."""

    def __init__(self) -> None:
        self._words: list[StyledWord] = []  # after the last line given out
        self._space: str | None = None  # the style of a space that no word follows yet
        self._can_extend_word = False  # whether text without a space extends the last word

    def push(self, spans: Iterable[Span]) -> None:
        for text, style in spans:
            if text == LINE_BREAK:
                self._words.append(StyledWord(is_break=True))
                self._space, self._can_extend_word = None, False
            elif text:
                self._push_text(text, style)

    def _push_text(self, text: str, style: str) -> None:
        if text[0].isspace():
            self._space, self._can_extend_word = style, False
        for number, chunk in enumerate(text.split()):
            if number:
                self._space, self._can_extend_word = style, False
            if chunk.isascii() and not (self._can_extend_word and self._ends_wide()):
                self._add_text(chunk, style, goes_on=self._can_extend_word)
            else:
                self._add_wide_text(chunk, style)
        if text[-1].isspace():
            self._space, self._can_extend_word = style, False

    def _add_wide_text(self, chunk: str, style: str) -> None:
        """Add text with wide characters: lines may break before and after each of them."""
        for character in chunk:
            goes_on = self._can_extend_word and (
                is_combining(character)
                or character in CLOSING_PUNCTUATION
                or self._words[-1].spans[-1][0].endswith(ZERO_WIDTH_JOINER)
                or not (measure_character(character) == 2 or self._ends_wide())
            )
            self._add_text(character, style, goes_on=goes_on)

    def _add_text(self, text: str, style: str, *, goes_on: bool) -> None:
        if not goes_on:
            self._words.append(StyledWord(self._space))
        self._space, self._can_extend_word = None, True
        self._words[-1].add(text, style)

    def _ends_wide(self) -> bool:
        return self._words[-1].is_wide_at_end()

    def take_lines(self, width: int, *, final: bool) -> list[list[Span]]:
        """Take the settled lines; with `final` all of them."""
        width = max(1, width)
        lines: list[list[Span]] = []
        line: list[Span] = []
        room = width
        words = self._words
        start = at = 0  # the first word of the line, and the current word
        while at < len(words):
            word = words[at]
            if word.is_break:
                lines.append(line)
                line, room, at = [], width, at + 1
                start = at
                continue
            needs = word.width + (1 if line and word.space is not None else 0)
            if line and needs > room:
                lines.append(line)
                line, room, start = [], width, at
            if not line and word.width > width:
                words[at : at + 1] = word.split_to_width(width)
                word = words[at]
            if line and word.space is not None:
                line.append((" ", word.space))
                room -= 1
            line += word.spans
            room -= word.width
            at += 1
        if final:
            if line:
                lines.append(line)
            self._words, self._space, self._can_extend_word = [], None, False
        else:
            del words[:start]
        return lines

    def copy(self) -> "LineWrapper":
        """Copy the state, to preview more text."""
        other = LineWrapper()
        other._words = [word.copy() for word in self._words]
        other._space, other._can_extend_word = self._space, self._can_extend_word
        return other


def break_lines(spans: Sequence[Span], width: int) -> list[list[Span]]:
    """Break where a line is full, and keep all spaces."""
    lines: list[list[Span]] = [[]]
    room = max(1, width)
    for text, style in spans:
        if text.isascii():
            if room < 1:
                lines.append([])
                room = max(1, width)
            while len(text) > room:
                lines[-1].append((text[:room], style))
                lines.append([])
                text, room = text[room:], max(1, width)
            lines[-1].append((text, style))
            room -= len(text)
            continue
        for cluster in split_clusters(text):
            needs = measure_text(cluster)
            if needs > room and lines[-1]:
                lines.append([])
                room = max(1, width)
            lines[-1].append((cluster, style))
            room -= needs
    return lines


def truncate_spans(spans: Iterable[Span], width: int, more: str = "…") -> list[Span]:
    """Cut to one line; `more` marks the cut."""
    spans = list(spans)
    if sum(measure_text(text) for text, _ in spans) <= width:
        return spans
    line: list[Span] = []
    room = width - measure_text(more)
    for text, style in spans:
        for cluster in split_clusters(text[: room + 1] if text.isascii() else text):
            needs = measure_text(cluster)
            if needs > room:
                return [*line, (more[: max(0, width)], style)]
            line.append((cluster, style))
            room -= needs
    return line
