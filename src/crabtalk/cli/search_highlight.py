"""Highlight the words of a text that a search looked for, matched as the search matches them."""

import re
from itertools import groupby

from crabtalk.service.command_line import apply_style, has_colour

WORD = re.compile(r"[^\W_]+")


def highlight_terms(text: str, query: str) -> str:
    """Highlight the words of `query` if there is colour; accents and case do not matter."""
    if not has_colour():
        return text
    from crabtalk.memory import tokenize_text

    terms = frozenset(tokenize_text(query))

    def is_match(piece: str) -> bool:
        return not terms.isdisjoint(tokenize_text(piece))

    def mark(word: re.Match[str]) -> str:
        # In scripts without spaces each character is a search term of its own.
        parts = (
            "".join(part)
            for _, part in groupby(word[0], key=lambda c: c if tokenize_text(c) else "")
        )
        return "".join(
            apply_style(part, bold=True, fg="yellow") if is_match(part) else part for part in parts
        )

    return WORD.sub(mark, text)
