"""Highlight: code in colours, a line at a time. Knows the language by the name the fence gives it.

What a line looks like depends on the lines before it and never on those after it, so that a line
can be shown for good as soon as it is complete.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from .flow import Span
from .look import Look, Styles

# In these a comment goes on over lines, and their lexers look for its end in one piece.
BLOCK_COMMENTS = frozenset(
    {"C", "C++", "C#", "CSS", "Dart", "Go", "Java", "JavaScript", "Kotlin", "Objective-C", "PHP"}
    | {"Rust", "SCSS", "Scala", "Swift", "TypeScript", "TSX", "JSX", "Zig", "SQL"}
)
USUAL = ("python", "bash", "json", "javascript")
OPEN, CLOSE = "/*", "*/"
MOST = 4  # tokens for each character, beyond which a lexer goes round in circles
Token = tuple[Any, str]


class Highlight:
    def __init__(self, look: Look, language: str) -> None:
        self._look = look
        self._lexer = lexer_for(language) if look.has_colour and language else None
        self._stack: list[str] | None = None  # of the lexer's states; None if it has none
        self._in_comment = False
        self._styles: dict[Any, str] = {}  # by kind of token
        self._has_comments = self._lexer is not None and self._lexer.name in BLOCK_COMMENTS
        if self._lexer is not None and is_stateful(self._lexer):
            self._stack = ["root"]

    def line(self, text: str) -> list[Span]:
        """The next line, without its end."""
        if self._lexer is None:
            return [(text, "")]
        tokens = self._in_comment_or_not(text) if self._has_comments else self._tokens(text)
        return [(piece, self._style(kind)) for kind, piece in tokens if piece]

    def peek(self, text: str) -> list[Span]:
        """How a line looks that is not complete."""
        stack, in_comment = self._stack, self._in_comment
        spans = self.line(text)
        self._stack, self._in_comment = stack, in_comment
        return spans

    def _in_comment_or_not(self, text: str) -> list[Token]:
        from pygments.token import Comment  # type: ignore[import-untyped]

        if self._in_comment:
            inside, close, rest = text.partition(CLOSE)
            if not close:
                return [(Comment, text)]
            self._in_comment = False
            return [(Comment, inside + close), *self._in_comment_or_not(rest)]
        if text.rfind(OPEN) <= text.rfind(CLOSE):
            return self._tokens(text)
        # Is it a comment, or a string with such signs in it? Closed, the lexer can tell.
        before = self._stack
        tokens = self._tokens(text + CLOSE)
        kind, last = tokens[-1] if tokens else (None, "")
        if kind is not None and kind in Comment and last.startswith(OPEN) and last.endswith(CLOSE):
            self._in_comment = True
            return [*tokens[:-1], (kind, last.removesuffix(CLOSE))]
        self._stack = before
        return self._tokens(text)

    def _tokens(self, text: str) -> list[Token]:
        most = MOST * (len(text) + 2)
        try:
            tokens = list(islice(self._lexed(text + "\n"), most))
        except Exception:  # there are hundreds, and colour is worth no traceback
            tokens = []
        if not tokens or len(tokens) == most:
            self._lexer = None
            return [(None, text)]
        # The end of the line belongs to none of them.
        while tokens and not (stripped := tokens[-1][1].rstrip("\n")):
            tokens.pop()
        if tokens:
            tokens[-1] = (tokens[-1][0], stripped)
        return tokens

    def _lexed(self, text: str) -> Iterator[Token]:
        from pygments.lexer import ExtendedRegexLexer, LexerContext  # type: ignore[import-untyped]

        if self._lexer is None:
            return
        if self._stack is None:
            found = self._lexer.get_tokens_unprocessed(text)
            yield from ((kind, piece) for _, kind, piece in found)
            return
        context = LexerContext(text, 0, list(self._stack))
        # What goes on from a state that it was left in, other lexers can do with their rules too.
        found = ExtendedRegexLexer.get_tokens_unprocessed(self._lexer, context=context)
        yield from ((kind, piece) for _, kind, piece in found)
        self._stack = context.stack

    def _style(self, kind: Any) -> str:
        if kind is None:
            return ""
        if kind not in self._styles:
            self._styles[kind] = style_of(kind, self._look.styles)
        return self._styles[kind]


def warm() -> None:
    """Loads what the usual languages need. It takes a moment, which is best not one in which
    somebody types: call it in a thread."""
    for language in USUAL:
        Highlight(Look(), language).line("")


def lexer_for(language: str) -> Any:
    """None for a language nobody knows."""
    from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
    from pygments.util import ClassNotFound  # type: ignore[import-untyped]

    try:
        return get_lexer_by_name(language.lower())
    except ClassNotFound:
        return None


def is_stateful(lexer: Any) -> bool:
    """Whether it can go on where it stopped: rules and states, and nothing beside them."""
    from pygments.lexer import RegexLexer

    return (
        isinstance(lexer, RegexLexer)
        and type(lexer).get_tokens_unprocessed is RegexLexer.get_tokens_unprocessed
    )


def style_of(kind: Any, styles: Styles) -> str:
    from pygments import token  # type: ignore[import-untyped]

    for parent, style in (
        (token.Comment, styles.comment),
        (token.Keyword, styles.keyword),
        (token.Operator.Word, styles.keyword),
        (token.Name.Tag, styles.keyword),
        (token.Literal.Number, styles.number),
        (token.Literal, styles.literal),
        (token.Name.Function, styles.defined),
        (token.Name.Class, styles.defined),
        (token.Name.Decorator, styles.defined),
        (token.Name.Attribute, styles.defined),
        (token.Generic.Inserted, styles.added),
        (token.Generic.Deleted, styles.removed),
        (token.Generic.Heading, styles.strong),
        (token.Generic.Subheading, styles.defined),
    ):
        if kind in parent:
            return style
    return ""
