"""Emphasis: the words of a text that a search was for, found the way the search finds them."""

import re
from itertools import groupby

from crabtalk.service.command_line import apply_style, has_colour

WORD = re.compile(r"[^\W_]+")


def highlight_terms(text: str, query: str) -> str:
    """With the words of `query` set off where there is colour; accents and case do not matter."""
    if not has_colour():
        return text
    from crabtalk.memory import tokenize_text

    asked = frozenset(tokenize_text(query))

    def is_asked(piece: str) -> bool:
        return not asked.isdisjoint(tokenize_text(piece))

    def mark(word: re.Match[str]) -> str:
        # Scripts without spaces are searched by the character, and are terms one by one.
        parts = (
            "".join(part)
            for _, part in groupby(word[0], key=lambda c: c if tokenize_text(c) else "")
        )
        return "".join(
            apply_style(part, bold=True, fg="yellow") if is_asked(part) else part for part in parts
        )

    return WORD.sub(mark, text)
