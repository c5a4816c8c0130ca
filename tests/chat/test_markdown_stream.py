"""Answers in markdown while they are written."""

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
    look=st.sampled_from(sorted(THEMES)),
)
@example(text="a\n1. x", cuts=[4], width=20, look="plain")
@example(text="1. x\t\ny", cuts=[2], width=20, look="plain")
@example(text="|a|\n|-|\n" + "|x|\n" * 12, cuts=[40], width=20, look="plain")
@example(text="```js\n/*\n*/ x\n", cuts=[8, 1, 1], width=20, look="colour")
@example(text="- " + "x" * MAX_LINE + "\n- y", cuts=[MAX_LINE, 1, 1], width=20, look="plain")
@example(text=" " * (MAX_LINE + 5) + "foo", cuts=[MAX_LINE + 2], width=20, look="plain")
def test_pieces_give_the_lines_of_the_whole(
    text: str, cuts: list[int], width: int, look: str
) -> None:
    expected = render_markdown(text, width, THEMES[look])
    assert render_in_pieces(text, cuts, width, THEMES[look]) == expected
    assert measure_widest(expected) <= width


@pytest.mark.req("chat.show.stream_is_whole")
@pytest.mark.parametrize("look", THEMES)
@pytest.mark.parametrize("width", [80, 40, 20])
def test_an_answer_with_all_there_is_gives_the_same_lines_a_character_at_a_time(
    width: int, look: str
) -> None:
    expected = render_markdown(ANSWER, width, THEMES[look])
    assert render_in_pieces(ANSWER, [1] * len(ANSWER), width, THEMES[look]) == expected
    assert measure_widest(expected) <= width


@pytest.mark.req("chat.show.settled")
def test_what_is_settled_is_given_out_at_once_and_little_stays_live() -> None:
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
def test_of_a_long_answer_a_few_lines_are_live_at_any_time() -> None:
    stream = MarkdownStream(Theme())
    for character in ANSWER * 3:
        stream.feed(character)
        stream.take_lines(80)
        assert len(stream.live_lines(80)) <= 6


@pytest.mark.req("chat.show.resize")
@given(widths=st.lists(st.integers(10, 60), min_size=1, max_size=12))
def test_a_terminal_that_changes_its_width_loses_nothing(widths: list[int]) -> None:
    text = "one two three four **five six** seven eight nine ten eleven twelve\n\n- thirteen\n" * 3
    stream = MarkdownStream(PLAIN_THEME)
    lines: list[str] = []
    size = len(text) // len(widths) + 1
    for number, width in enumerate(widths):
        stream.feed(text[number * size : (number + 1) * size])
        taken = stream.take_lines(width)
        assert measure_widest([*taken, *stream.live_lines(width)]) <= width
        lines += taken
    stream.finish()
    lines += stream.take_lines(widths[-1])
    assert "".join(" ".join(lines).split()) == "".join(text.replace("- ", "• ").split())


@pytest.mark.req("chat.show.live")
def test_a_line_is_drawn_as_what_it_is_going_to_be() -> None:
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


# ── What it looks like ──────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.show.markdown")
def test_lists_are_nested_numbered_and_ticked() -> None:
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
def test_what_an_item_holds_stands_below_its_text() -> None:
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


def test_an_item_without_text_is_still_an_item() -> None:
    assert render_markdown("-\n- two\n-") == ["•", "• two", "•"]


@pytest.mark.req("chat.show.markdown")
def test_quotes_have_a_bar_and_hold_what_they_hold() -> None:
    assert render_markdown("> one\n> two\n>\n> - three\n\nfour") == [
        "│ one two",
        "│",
        "│ • three",
        "",
        "four",
    ]


@pytest.mark.req("chat.show.markdown")
def test_headings_are_set_off_and_without_colour_keep_their_marks() -> None:
    text = "text\n# One\ntext\n### Three ###"
    assert render_markdown(text) == ["text", "", "# One", "", "text", "", "### Three"]
    styles = Theme().styles
    assert f"\x1b[{styles.title}mOne\x1b[0m" in render_markdown(text, look=Theme())
    assert f"\x1b[{styles.heading}mThree\x1b[0m" in render_markdown(text, look=Theme())


def test_a_line_below_a_paragraph_is_a_rule() -> None:
    for line in ("===", "---"):
        assert render_markdown(f"Title\n{line}\ntext", 5) == ["Title", "", "─────", "", "text"]
    assert render_markdown("***", 5) == ["─────"]


@pytest.mark.req("chat.show.code")
def test_code_is_coloured_and_never_read_as_markdown() -> None:
    lines = render_markdown("```python\ndef f(): # *c*\n\n    pass\n```\nafter", look=Theme())
    styles = Theme().styles
    assert f"\x1b[{styles.keyword}mdef\x1b[0m" in lines[1]
    assert strip_escapes(lines) == ["─── python", "def f(): # *c*", "", "    pass", "", "after"]


@pytest.mark.req("chat.show.code")
def test_a_fence_nobody_closes_is_code_to_the_end() -> None:
    assert render_markdown("```\n# no heading\n* no item") == ["───", "# no heading", "* no item"]
    assert render_markdown("````\n```\n````\nafter") == ["───", "```", "", "after"]


def test_tags_are_text() -> None:
    assert render_markdown("<details>\n<b>x</b> <script>alert(1)</script>") == [
        "<details> <b>x</b> <script>alert(1)</script>"
    ]


def test_blank_lines_are_one_where_the_text_has_some_and_none_at_either_end() -> None:
    assert render_markdown("\n\na\n\n\n\nb\nc\n\n") == ["a", "", "b c"]
    assert render_markdown("") == render_markdown("\n \n") == []


@pytest.mark.req("chat.show.hostile")
def test_what_would_steer_a_terminal_is_seen_instead() -> None:
    text = "a\x1b[2Jb \x07 \u202ec \x9b31m\n```\n\x1b]0;t\x07\tx\r\n```\n# \x00\nb\rc"
    shown = "\n".join(render_in_pieces(text, [1] * len(text), 60))
    assert shown == "\n".join(render_markdown(text, 60))
    assert not [c for c in shown if (ord(c) < 32 and c != "\n") or c in "\x9b\u202e"]
    for written in ("a\\x1b[2Jb", "\\x07", "\\u202ec", "\\x9b31m", "\\x1b]0;t", "\\x00", "b\\rc"):
        assert written in shown


@pytest.mark.req("chat.show.narrow")
@given(text=TEXTS, width=st.integers(2, 12))
def test_no_terminal_is_too_narrow(text: str, width: int) -> None:
    assert measure_widest(render_markdown(text, width)) <= width


# ── What it costs ───────────────────────────────────────────────────────────────────────────────


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
def test_no_text_is_long_enough_to_be_held_back_or_drawn_at_length(text: str, part: int) -> None:
    text = text[: len(text) // part]
    stream = MarkdownStream(Theme())
    kept = 0
    for at in range(0, len(text), 4000):
        stream.feed(text[at : at + 4000])
        kept += sum(measure_text(line) for line in strip_escapes(stream.take_lines(80)))
        assert len(stream.live_lines(80)) <= 30
    stream.finish()
    lines = stream.take_lines(80)
    assert kept + sum(measure_text(line) for line in strip_escapes(lines)) >= 0.3 * measure_text(
        text.replace("\n", "")
    )


@pytest.mark.req("chat.show.cost")
def test_an_answer_at_200_tokens_a_second_costs_little_of_a_core() -> None:
    measure_stream(count=200)
    spent, _, live = min(measure_stream() for _ in range(2))
    assert spent / (TOKENS / RATE) <= 0.15
    assert live <= 8


@pytest.mark.req("chat.show.cost")
@pytest.mark.clock
def test_a_piece_of_text_costs_the_same_however_much_came_before_it() -> None:
    def seconds(count: int) -> float:
        stream = MarkdownStream(Theme())
        began = time.process_time()
        for _ in range(count):
            stream.feed(ANSWER)
            stream.take_lines(80)
            stream.live_lines(80)
        return time.process_time() - began

    seconds(2)
    # Were each dearer than the one before, sixteen times as many would cost far more than that.
    assert seconds(160) <= 60 * max(min(seconds(10) for _ in range(3)), 0.005)
