"""Syntax highlighting of code, line by line."""

import subprocess
import sys

import pytest
from pygments.lexers import get_all_lexers  # type: ignore[import-untyped]

from crabtalk.chat.code_highlighting import CodeHighlighter
from crabtalk.chat.line_wrapping import Span
from crabtalk.chat.theme import PLAIN_THEME, Theme

THEME = Theme()
STYLES = THEME.styles
ODD = (
    '/* x "a',
    "'b' <a href=\"c\">{{ d }}</a>",
    "\\ `e` #!/bin/sh",
    "<<EOF",
    "$x ${y} %s @z",
    "*/ 日本 -- c",
    "",
    "    1.5e3",
)


def highlight_lines(language: str, *lines: str) -> list[list[Span]]:
    highlight = CodeHighlighter(THEME, language)
    return [highlight.highlight_line(line) for line in lines]


def collect_comments(line: list[Span]) -> str:
    return "".join(text for text, style in line if style == STYLES.comment)


@pytest.mark.req("chat.show.code")
def test_keywords_strings_numbers_comments_and_names_differ() -> None:
    (line,) = highlight_lines("python", 'def tide(): return "high", 4 # m')
    assert dict(line) | {"": ""} == {
        "def": STYLES.keyword,
        " ": "",
        "tide": STYLES.defined,
        "(": "",
        ")": "",
        ":": "",
        "return": STYLES.keyword,
        '"': STYLES.literal,
        "high": STYLES.literal,
        ",": "",
        "4": STYLES.number,
        "# m": STYLES.comment,
        "": "",
    }


@pytest.mark.req("chat.show.code")
def test_strings_and_comments_can_span_lines() -> None:
    _, inside, after = highlight_lines("python", 'x = """a', "def b", '""" + 1')
    assert inside == [("def b", STYLES.literal)]
    assert ("1", STYLES.number) in after
    for language in ("c", "js", "rust", "css", "java", "go", "ts", "sql"):
        first, inside, last = highlight_lines(language, "a /* if", "return 1", "2 */ b")
        assert collect_comments(first) == "/* if", language
        assert collect_comments(inside) == "return 1", language
        assert collect_comments(last) == "2 */", language


def test_comment_marks_in_a_string_begin_no_comment() -> None:
    for language in ("js", "rust", "c", "java"):
        _, after = highlight_lines(language, 'x = "/*";', "return 1")
        assert ("return", STYLES.keyword) in after, language


def test_previewing_an_incomplete_line_changes_no_state() -> None:
    highlight = CodeHighlighter(THEME, "python")
    highlight.preview_line('"""open')
    assert highlight.highlight_line("def")[0] == ("def", STYLES.keyword)


def test_unknown_languages_and_chats_without_colour_leave_code_unchanged() -> None:
    assert highlight_lines("nosuch", "def x")[0] == [("def x", "")]
    assert CodeHighlighter(PLAIN_THEME, "python").highlight_line("def x") == [("def x", "")]


@pytest.mark.req("chat.show.code")
@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_no_lexer_loses_a_character(every: int) -> None:
    for _, aliases, _, _ in list(get_all_lexers())[::every]:
        highlight = CodeHighlighter(THEME, aliases[0]) if aliases else CodeHighlighter(THEME, "")
        for line in ODD:
            assert "".join(text for text, _ in highlight.highlight_line(line)) == line, aliases


def test_preloading_imports_the_lexers() -> None:
    script = (
        "import sys; from crabtalk.chat.code_highlighting import preload_lexers; "
        "assert 'pygments' not in sys.modules; preload_lexers(); "
        "assert 'pygments.lexers.python' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
