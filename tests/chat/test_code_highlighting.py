"""Code in colours."""

import subprocess
import sys

import pytest
from pygments.lexers import get_all_lexers  # type: ignore[import-untyped]

from crabtalk.chat.code_highlighting import CodeHighlighter
from crabtalk.chat.line_wrapping import Span
from crabtalk.chat.theme import PLAIN_THEME, Theme

LOOK = Theme()
STYLES = LOOK.styles
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
    highlight = CodeHighlighter(LOOK, language)
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
def test_what_goes_on_over_lines_is_known_on_the_next() -> None:
    _, inside, after = highlight_lines("python", 'x = """a', "def b", '""" + 1')
    assert inside == [("def b", STYLES.literal)]
    assert ("1", STYLES.number) in after
    for language in ("c", "js", "rust", "css", "java", "go", "ts", "sql"):
        first, inside, last = highlight_lines(language, "a /* if", "return 1", "2 */ b")
        assert collect_comments(first) == "/* if", language
        assert collect_comments(inside) == "return 1", language
        assert collect_comments(last) == "2 */", language


def test_the_signs_of_a_comment_in_a_string_begin_none() -> None:
    for language in ("js", "rust", "c", "java"):
        _, after = highlight_lines(language, 'x = "/*";', "return 1")
        assert ("return", STYLES.keyword) in after, language


def test_a_line_that_is_not_complete_leaves_no_trace() -> None:
    highlight = CodeHighlighter(LOOK, "python")
    highlight.preview_line('"""open')
    assert highlight.highlight_line("def")[0] == ("def", STYLES.keyword)


def test_a_language_nobody_knows_and_a_chat_without_colour_leave_code_as_it_is() -> None:
    assert highlight_lines("nosuch", "def x")[0] == [("def x", "")]
    assert CodeHighlighter(PLAIN_THEME, "python").highlight_line("def x") == [("def x", "")]


@pytest.mark.req("chat.show.code")
@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_no_language_there_is_loses_a_character(every: int) -> None:
    for _, aliases, _, _ in list(get_all_lexers())[::every]:
        highlight = CodeHighlighter(LOOK, aliases[0]) if aliases else CodeHighlighter(LOOK, "")
        for line in ODD:
            assert "".join(text for text, _ in highlight.highlight_line(line)) == line, aliases


def test_what_was_warmed_is_loaded() -> None:
    script = (
        "import sys; from crabtalk.chat.code_highlighting import preload_lexers; "
        "assert 'pygments' not in sys.modules; preload_lexers(); "
        "assert 'pygments.lexers.python' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
