"""Inline: the markdown inside a paragraph, as styled spans. Knows nothing of lines and blocks.

Text comes in pieces; what it means is given out as soon as no further text can change it. How it is
read stands in `reading`.
"""

from .flow import Span, joined
from .look import Look
from .reading import ADDRESS, CODE, EMPHASIS, LINK, STRONG, STRUCK, Node, Reading


class Inline:
    def __init__(self, look: Look, style: str = "") -> None:
        self._look = look
        self._style = style  # of all of it
        self._rest = ""  # what is not settled
        self._before = " "  # what is in front of that, two characters of it
        self._is_read = True

    def feed(self, text: str) -> None:
        self._rest += text
        self._is_read = False

    def settled(self, *, final: bool = False) -> list[Span]:
        """Takes what further text cannot change; with `final` all there is."""
        if not self._rest or (self._is_read and not final):
            return []
        self._is_read = True
        nodes, length = self._reading(self._rest, final=final).settled()
        if length:
            self._before = (self._before + self._rest[:length])[-2:]
            self._rest = self._rest[length:]
        return self._spans(nodes)

    def tail(self) -> list[Span]:
        """What is not settled, as if the marks that are open were closed at its end."""
        text = self._rest.rstrip()
        if not text:
            return []
        closing = self._reading(text, final=False).closing()
        return self._spans(self._reading(text + closing, final=True).settled()[0])

    def _reading(self, text: str, *, final: bool) -> Reading:
        return Reading(text, self._before, final=final, keeps_marks=not self._look.has_colour)

    def _spans(self, nodes: list[Node]) -> list[Span]:
        return [
            (node.text, joined(self._style, self._styled(node.flags)))
            for node in nodes
            if node.text
        ]

    def _styled(self, flags: int) -> str:
        if not flags:
            return ""
        styles = self._look.styles
        of_flags = (
            (STRONG, styles.strong),
            (EMPHASIS, styles.emphasis),
            (STRUCK, styles.struck),
            (LINK, styles.link),
            (CODE, styles.code),
            (ADDRESS, styles.address),
        )
        return ";".join(style for flag, style in of_flags if flags & flag and style)


def read_whole(text: str, look: Look, style: str = "") -> list[Span]:
    inline = Inline(look, style)
    inline.feed(text)
    return inline.settled(final=True)
