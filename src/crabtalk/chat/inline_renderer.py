"""Render the inline Markdown of a paragraph as styled spans. Knows nothing of lines and blocks.

Text comes in pieces, and spans are given out as soon as no further text can change them.
`inline_parser` does the parsing.
"""

from .inline_parser import (
    ADDRESS,
    CODE,
    EMPHASIS,
    LINK,
    STRIKETHROUGH,
    STRONG,
    InlineNode,
    InlineParser,
)
from .line_wrapping import Span, combine_styles
from .theme import Theme


class InlineRenderer:
    def __init__(self, theme: Theme, style: str = "") -> None:
        self._theme = theme
        self._style = style  # of the whole text
        self._unsettled = ""  # text that can still change
        self._preceding = " "  # the two characters before it
        self._is_parsed = True

    def feed(self, text: str) -> None:
        self._unsettled += text
        self._is_parsed = False

    def take_settled(self, *, final: bool = False) -> list[Span]:
        """Take the spans that further text cannot change; with `final` all of them."""
        if not self._unsettled or (self._is_parsed and not final):
            return []
        self._is_parsed = True
        nodes, length = self._parse(self._unsettled, final=final).get_settled()
        if length:
            self._preceding = (self._preceding + self._unsettled[:length])[-2:]
            self._unsettled = self._unsettled[length:]
        return self._style_nodes(nodes)

    def preview_tail(self) -> list[Span]:
        """Render the unsettled text as if open marks were closed at its end."""
        text = self._unsettled.rstrip()
        if not text:
            return []
        closing = self._parse(text, final=False).build_closing_marks()
        return self._style_nodes(self._parse(text + closing, final=True).get_settled()[0])

    def _parse(self, text: str, *, final: bool) -> InlineParser:
        return InlineParser(
            text, self._preceding, final=final, keeps_marks=not self._theme.has_colour
        )

    def _style_nodes(self, nodes: list[InlineNode]) -> list[Span]:
        return [
            (node.text, combine_styles(self._style, self._combine_styles(node.flags)))
            for node in nodes
            if node.text
        ]

    def _combine_styles(self, flags: int) -> str:
        if not flags:
            return ""
        styles = self._theme.styles
        flag_styles = (
            (STRONG, styles.strong),
            (EMPHASIS, styles.emphasis),
            (STRIKETHROUGH, styles.struck),
            (LINK, styles.link),
            (CODE, styles.code),
            (ADDRESS, styles.address),
        )
        return ";".join(style for flag, style in flag_styles if flags & flag and style)


def render_inline(text: str, theme: Theme, style: str = "") -> list[Span]:
    renderer = InlineRenderer(theme, style)
    renderer.feed(text)
    return renderer.take_settled(final=True)
