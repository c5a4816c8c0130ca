"""Highlight code line by line. The fence names the language.

The colours of a line depend on the lines before it and never on those after it, so that a line can
be printed as soon as it is complete.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from .line_wrapping import Span
from .theme import Styles, Theme

# Languages whose comments may span lines. Their lexers need a whole comment to recognise it.
BLOCK_COMMENTS = frozenset(
    {"C", "C++", "C#", "CSS", "Dart", "Go", "Java", "JavaScript", "Kotlin", "Objective-C", "PHP"}
    | {"Rust", "SCSS", "Scala", "Swift", "TypeScript", "TSX", "JSX", "Zig", "SQL"}
)
PRELOADED_LANGUAGES = ("python", "bash", "json", "javascript")
COMMENT_START, COMMENT_END = "/*", "*/"
MAX_TOKENS_PER_CHARACTER = 4  # a lexer that yields more is in an endless loop
Token = tuple[Any, str]


class CodeHighlighter:
    def __init__(self, theme: Theme, language: str) -> None:
        self._theme = theme
        self._lexer = find_lexer(language) if theme.has_colour and language else None
        self._stack: list[str] | None = None  # the lexer's states; None if it has none
        self._in_comment = False
        self._styles: dict[Any, str] = {}  # by kind of token
        self._has_comments = self._lexer is not None and self._lexer.name in BLOCK_COMMENTS
        if self._lexer is not None and is_stateful(self._lexer):
            self._stack = ["root"]

    def highlight_line(self, text: str) -> list[Span]:
        """Highlight the next line, given without its newline."""
        if self._lexer is None:
            return [(text, "")]
        tokens = self._tokenize_with_comments(text) if self._has_comments else self._tokenize(text)
        return [(piece, self._get_style(kind)) for kind, piece in tokens if piece]

    def preview_line(self, text: str) -> list[Span]:
        """Highlight a line that is not complete yet, without changing the state."""
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
        # It may be a comment or a string that contains `/*`. With the comment closed the lexer can
        # tell.
        stack_before = self._stack
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
        self._stack = stack_before
        return self._tokenize(text)

    def _tokenize(self, text: str) -> list[Token]:
        limit = MAX_TOKENS_PER_CHARACTER * (len(text) + 2)
        try:
            tokens = list(islice(self._run_lexer(text + "\n"), limit))
        except Exception:  # any of hundreds of lexers may fail; the text is then shown uncoloured
            tokens = []
        if not tokens or len(tokens) == limit:
            self._lexer = None
            return [(None, text)]
        # Remove the newline that was added for the lexer.
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
            tokens = self._lexer.get_tokens_unprocessed(text)
            yield from ((kind, piece) for _, kind, piece in tokens)
            return
        context = LexerContext(text, 0, list(self._stack))
        # ExtendedRegexLexer can resume from a saved state, and works with any RegexLexer's rules.
        tokens = ExtendedRegexLexer.get_tokens_unprocessed(self._lexer, context=context)
        yield from ((kind, piece) for _, kind, piece in tokens)
        self._stack = context.stack

    def _get_style(self, kind: Any) -> str:
        if kind is None:
            return ""
        if kind not in self._styles:
            self._styles[kind] = get_token_style(kind, self._theme.styles)
        return self._styles[kind]


def preload_lexers() -> None:
    """Load the lexers of common languages. It is slow: call it in a thread, so that keys are not
    delayed."""
    for language in PRELOADED_LANGUAGES:
        CodeHighlighter(Theme(), language).highlight_line("")


def find_lexer(language: str) -> Any:
    """Return the lexer for a language; None if pygments has none."""
    from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
    from pygments.util import ClassNotFound  # type: ignore[import-untyped]

    try:
        return get_lexer_by_name(language.lower())
    except ClassNotFound:
        return None


def is_stateful(lexer: Any) -> bool:
    """Whether the lexer can resume from a saved state: it has only rules and states."""
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
