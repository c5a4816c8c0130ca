"""Highlight: code in colours, a line at a time. Knows the language by the name the fence gives it.

What a line looks like depends on the lines before it and never on those after it, so that a line
can be shown for good as soon as it is complete.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from .line_wrapping import Span
from .theme import Styles, Theme

# In these a comment goes on over lines, and their lexers look for its end in one piece.
BLOCK_COMMENTS = frozenset(
    {"C", "C++", "C#", "CSS", "Dart", "Go", "Java", "JavaScript", "Kotlin", "Objective-C", "PHP"}
    | {"Rust", "SCSS", "Scala", "Swift", "TypeScript", "TSX", "JSX", "Zig", "SQL"}
)
PRELOADED_LANGUAGES = ("python", "bash", "json", "javascript")
COMMENT_START, COMMENT_END = "/*", "*/"
MAX_TOKENS_PER_CHARACTER = (
    4  # tokens for each character, beyond which a lexer goes round in circles
)
Token = tuple[Any, str]


class CodeHighlighter:
    def __init__(self, look: Theme, language: str) -> None:
        self._theme = look
        self._lexer = find_lexer(language) if look.has_colour and language else None
        self._stack: list[str] | None = None  # of the lexer's states; None if it has none
        self._in_comment = False
        self._styles: dict[Any, str] = {}  # by kind of token
        self._has_comments = self._lexer is not None and self._lexer.name in BLOCK_COMMENTS
        if self._lexer is not None and is_stateful(self._lexer):
            self._stack = ["root"]

    def highlight_line(self, text: str) -> list[Span]:
        """The next line, without its end."""
        if self._lexer is None:
            return [(text, "")]
        tokens = self._tokenize_with_comments(text) if self._has_comments else self._tokenize(text)
        return [(piece, self._get_style(kind)) for kind, piece in tokens if piece]

    def preview_line(self, text: str) -> list[Span]:
        """How a line looks that is not complete."""
        stack, in_comment = self._stack, self._in_comment
        spans = self.highlight_line(text)
        self._stack, self._in_comment = stack, in_comment
        return spans

    def _tokenize_with_comments(self, text: str) -> list[Token]:
        from pygments.token import Comment  # type: ignore[import-untyped]

        if self._in_comment:
            inside, close, rest = text.partition(COMMENT_END)
            if not close:
                return [(Comment, text)]
            self._in_comment = False
            return [(Comment, inside + close), *self._tokenize_with_comments(rest)]
        if text.rfind(COMMENT_START) <= text.rfind(COMMENT_END):
            return self._tokenize(text)
        # Is it a comment, or a string with such signs in it? Closed, the lexer can tell.
        before = self._stack
        tokens = self._tokenize(text + COMMENT_END)
        kind, last = tokens[-1] if tokens else (None, "")
        if (
            kind is not None
            and kind in Comment
            and last.startswith(COMMENT_START)
            and last.endswith(COMMENT_END)
        ):
            self._in_comment = True
            return [*tokens[:-1], (kind, last.removesuffix(COMMENT_END))]
        self._stack = before
        return self._tokenize(text)

    def _tokenize(self, text: str) -> list[Token]:
        most = MAX_TOKENS_PER_CHARACTER * (len(text) + 2)
        try:
            tokens = list(islice(self._run_lexer(text + "\n"), most))
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

    def _run_lexer(self, text: str) -> Iterator[Token]:
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

    def _get_style(self, kind: Any) -> str:
        if kind is None:
            return ""
        if kind not in self._styles:
            self._styles[kind] = get_token_style(kind, self._theme.styles)
        return self._styles[kind]


def preload_lexers() -> None:
    """Loads what the usual languages need. It takes a moment, which is best not one in which
    somebody types: call it in a thread."""
    for language in PRELOADED_LANGUAGES:
        CodeHighlighter(Theme(), language).highlight_line("")


def find_lexer(language: str) -> Any:
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


def get_token_style(kind: Any, styles: Styles) -> str:
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
