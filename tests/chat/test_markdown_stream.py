"""Rendering of Markdown answers while they are streamed."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.terminal import ANSWER, RATE, TOKENS, measure_stream
from crabtalk.chat.block_parser import MAX_LINE
from crabtalk.chat.line_wrapping import measure_text
from crabtalk.chat.markdown_stream import MarkdownStream
from crabtalk.chat.theme import PLAIN_THEME, Theme
from tests.chat.transcript_drawing import (
    THEMES,
    measure_widest,
    render_in_pieces,
    render_markdown,
    strip_escapes,
)

LINES = ["# ", "## ", "- ", "* ", "1. ", "2) ", "> ", "```", "```py", "~~~", "|", "|a|b|", "|-|-|"]
BITS = [
    "---",
    "***",
    "===",
    "    ",
    "\t",
    "word ",
    "longerword ",
    "日本語",
    "*",
    "**",
    "`",
    "x",
    "é",
]
ODD = [
    "[a](b)",
    "[x] ",
    "[ ] ",
    "\r\n",
    "\r",
    "\x1b[31m",
    "&amp;",
    "-",
    "=",
    "#",
    "a|b",
    "<br>",
    "1.",
]
TEXTS = st.lists(
    st.sampled_from(["\n", "\n", "\n\n", " ", "  "]) | st.sampled_from([*LINES, *BITS, *ODD]),
    max_size=50,
).map("".join)
CUTS = st.lists(st.integers(1, 6), max_size=60)


# ── Streaming ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.show.stream_is_whole")
@given(
    text=TEXTS,
    cuts=CUTS,
    width=st.sampled_from([5, 20, 40]),
    theme=st.sampled_from(sorted(THEMES)),
)
@example(text="a\n1. x", cuts=[4], width=20, theme="plain")
@example(text="1. x\t\ny", cuts=[2], width=20, theme="plain")
@example(text="|a|\n|-|\n" + "|x|\n" * 12, cuts=[40], width=20, theme="plain")
@example(text="```js\n/*\n*/ x\n", cuts=[8, 1, 1], width=20, theme="colour")
@example(text="- " + "x" * MAX_LINE + "\n- y", cuts=[MAX_LINE, 1, 1], width=20, theme="plain")
@example(text=" " * (MAX_LINE + 5) + "foo", cuts=[MAX_LINE + 2], width=20, theme="plain")
def test_text_in_pieces_gives_the_lines_of_the_whole(
    text: str, cuts: list[int], width: int, theme: str
) -> None:
    expected = render_markdown(text, width, THEMES[theme])
    assert render_in_pieces(text, cuts, width, THEMES[theme]) == expected
    assert measure_widest(expected) <= width


@pytest.mark.req("chat.show.stream_is_whole")
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [80, 40, 20])
def test_a_full_answer_gives_the_same_lines_character_by_character(width: int, theme: str) -> None:
    expected = render_markdown(ANSWER, width, THEMES[theme])
    assert render_in_pieces(ANSWER, [1] * len(ANSWER), width, THEMES[theme]) == expected
    assert measure_widest(expected) <= width


@pytest.mark.req("chat.show.settled")
def test_settled_lines_are_given_out_at_once() -> None:
    stream = MarkdownStream(PLAIN_THEME)
    stream.feed("The water rises twice a day and falls as")
    assert stream.take_lines(20) == ["The water rises", "twice a day and"]
    assert stream.live_lines(20) == ["falls as"]
    stream.feed(" often\n\n```py\na = 1\nb =")
    assert stream.take_lines(20)[-3:] == ["", "─── py", "a = 1"]
    assert stream.live_lines(20) == ["b ="]
    stream.feed(" 2\n```\n- one\n- tw")
    assert stream.take_lines(20) == ["b = 2", "", "• one"]
    assert stream.live_lines(20) == ["• tw"]


@pytest.mark.req("chat.show.settled")
def test_only_a_few_lines_of_a_long_answer_are_live() -> None:
    stream = MarkdownStream(Theme())
    for character in ANSWER * 3:
        stream.feed(character)
        stream.take_lines(80)
        assert len(stream.live_lines(80)) <= 6


@pytest.mark.req("chat.show.resize")
@given(widths=st.lists(st.integers(10, 60), min_size=1, max_size=12))
def test_no_text_is_lost_when_the_width_changes(widths: list[int]) -> None:
    text = "one two three four **five six** seven eight nine ten eleven twelve\n\n- thirteen\n" * 3
    stream = MarkdownStream(PLAIN_THEME)
    lines: list[str] = []
    size = len(text) // len(widths) + 1
    for number, width in enumerate(widths):
        stream.feed(text[number * size : (number + 1) * size])
        settled = stream.take_lines(width)
        assert measure_widest([*settled, *stream.live_lines(width)]) <= width
        lines += settled
    stream.finish()
    lines += stream.take_lines(widths[-1])
    assert "".join(" ".join(lines).split()) == "".join(text.replace("- ", "• ").split())


@pytest.mark.req("chat.show.live")
def test_an_incomplete_line_is_previewed_by_its_block() -> None:
    for text, shown in (
        ("# The ti", "The ti"),
        ("- **wat", "• wat"),
        ("> quo", "│ quo"),
        ("3. thr", "3. thr"),
        ("|a|b", "|a|b"),
        ("```", ""),
    ):
        stream = MarkdownStream(Theme())
        stream.feed(text)
        assert stream.take_lines(40) == []
        assert strip_escapes(stream.live_lines(40)) == ([shown] if shown else []), text


# ── Rendering ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.show.markdown")
def test_lists_can_be_nested_numbered_and_checked() -> None:
    text = "- one\n  - two\n    1. three\n    1. four\n- [x] five\n- [ ] six\n\n7. seven\n8. eight"
    assert render_markdown(text) == [
        "• one",
        "  ◦ two",
        "    1. three",
        "    2. four",
        "☑ five",
        "☐ six",
        "",
        "7. seven",
        "8. eight",
    ]


@pytest.mark.req("chat.show.markdown")
def test_the_content_of_an_item_is_indented() -> None:
    text = "1. one\n\n   more\n\n   ```\n   code\n     in\n   ```\n2. a long text that is wrapped"
    assert render_markdown(text, 20) == [
        "1. one",
        "",
        "   more",
        "",
        "   ───",
        "   code",
        "     in",
        "",
        "2. a long text that",
        "   is wrapped",
    ]


def test_an_empty_item_is_shown() -> None:
    assert render_markdown("-\n- two\n-") == ["•", "• two", "•"]


@pytest.mark.req("chat.show.markdown")
def test_quotes_have_a_bar_and_can_contain_blocks() -> None:
    assert render_markdown("> one\n> two\n>\n> - three\n\nfour") == [
        "│ one two",
        "│",
        "│ • three",
        "",
        "four",
    ]


@pytest.mark.req("chat.show.markdown")
def test_headings_have_blank_lines_and_keep_their_marks_without_colour() -> None:
    text = "text\n# One\ntext\n### Three ###"
    assert render_markdown(text) == ["text", "", "# One", "", "text", "", "### Three"]
    styles = Theme().styles
    assert f"\x1b[{styles.title}mOne\x1b[0m" in render_markdown(text, theme=Theme())
    assert f"\x1b[{styles.heading}mThree\x1b[0m" in render_markdown(text, theme=Theme())


def test_a_line_below_a_paragraph_is_a_rule() -> None:
    for line in ("===", "---"):
        assert render_markdown(f"Title\n{line}\ntext", 5) == ["Title", "", "─────", "", "text"]
    assert render_markdown("***", 5) == ["─────"]


@pytest.mark.req("chat.show.code")
def test_code_is_highlighted_and_not_parsed_as_markdown() -> None:
    lines = render_markdown("```python\ndef f(): # *c*\n\n    pass\n```\nafter", theme=Theme())
    styles = Theme().styles
    assert f"\x1b[{styles.keyword}mdef\x1b[0m" in lines[1]
    assert strip_escapes(lines) == ["─── python", "def f(): # *c*", "", "    pass", "", "after"]


@pytest.mark.req("chat.show.code")
def test_an_unclosed_fence_is_code_to_the_end() -> None:
    assert render_markdown("```\n# no heading\n* no item") == ["───", "# no heading", "* no item"]
    assert render_markdown("````\n```\n````\nafter") == ["───", "```", "", "after"]


def test_html_tags_are_shown_as_text() -> None:
    assert render_markdown("<details>\n<b>x</b> <script>alert(1)</script>") == [
        "<details> <b>x</b> <script>alert(1)</script>"
    ]


def test_blank_lines_are_collapsed_and_trimmed() -> None:
    assert render_markdown("\n\na\n\n\n\nb\nc\n\n") == ["a", "", "b c"]
    assert render_markdown("") == render_markdown("\n \n") == []


@pytest.mark.req("chat.show.hostile")
def test_control_characters_are_escaped() -> None:
    text = "a\x1b[2Jb \x07 \u202ec \x9b31m\n```\n\x1b]0;t\x07\tx\r\n```\n# \x00\nb\rc"
    shown = "\n".join(render_in_pieces(text, [1] * len(text), 60))
    assert shown == "\n".join(render_markdown(text, 60))
    assert not [c for c in shown if (ord(c) < 32 and c != "\n") or c in "\x9b\u202e"]
    for prompt in ("a\\x1b[2Jb", "\\x07", "\\u202ec", "\\x9b31m", "\\x1b]0;t", "\\x00", "b\\rc"):
        assert prompt in shown


@pytest.mark.req("chat.show.narrow")
@given(text=TEXTS, width=st.integers(2, 12))
def test_text_fits_narrow_terminals(text: str, width: int) -> None:
    assert measure_widest(render_markdown(text, width)) <= width


# ── Cost ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.show.bounded")
@pytest.mark.parametrize(
    "text",
    [
        "word " * 200_000,
        "w" * 1_000_000,
        "日本" * 100_000,
        "```\n" + "x" * 1_000_000,
        "```python\n" + "x = foo(1)  # c\n" * 100_000,
        "*" * 200_000,
        "`" * 200_000,
        "[" * 200_000,
        "*a " * 100_000,
        "[a](" * 50_000,
        "<a" * 100_000,
        "|" * 200_000,
        ">" * 200_000,
        "e" + "\u0301" * 200_000,
        "|a|\n|-|\n" + "|x|\n" * 50_000,
        "- x\n" * 50_000,
        "\n" * 200_000,
    ],
    ids=lambda text: text[:8].encode("unicode_escape").decode(),
)
@pytest.mark.parametrize("part", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_long_texts_are_given_out_and_not_redrawn(text: str, part: int) -> None:
    text = text[: len(text) // part]
    stream = MarkdownStream(Theme())
    printed_width = 0
    for at in range(0, len(text), 4000):
        stream.feed(text[at : at + 4000])
        printed_width += sum(measure_text(line) for line in strip_escapes(stream.take_lines(80)))
        assert len(stream.live_lines(80)) <= 30
    stream.finish()
    lines = stream.take_lines(80)
    assert printed_width + sum(
        measure_text(line) for line in strip_escapes(lines)
    ) >= 0.3 * measure_text(text.replace("\n", ""))


@pytest.mark.req("chat.show.cost")
def test_an_answer_at_200_tokens_a_second_uses_little_cpu() -> None:
    measure_stream(count=200)
    spent, _, live = min(measure_stream() for _ in range(2))
    assert spent / (TOKENS / RATE) <= 0.15
    assert live <= 8


@pytest.mark.req("chat.show.cost")
@pytest.mark.clock
def test_the_cost_of_a_piece_does_not_depend_on_the_text_before_it() -> None:
    def seconds(count: int) -> float:
        stream = MarkdownStream(Theme())
        began = time.process_time()
        for _ in range(count):
            stream.feed(ANSWER)
            stream.take_lines(80)
            stream.live_lines(80)
        return time.process_time() - began

    seconds(2)
    # With quadratic cost, sixteen times as many pieces would take far longer than this.
    assert seconds(160) <= 60 * max(min(seconds(10) for _ in range(3)), 0.005)
