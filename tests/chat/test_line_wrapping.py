"""Wrapping of styled text into lines."""

from hypothesis import given
from hypothesis import strategies as st

from crabtalk.chat.line_wrapping import (
    LineWrapper,
    break_lines,
    measure_text,
    render_ansi,
    truncate_spans,
)

SIGNS = ["a", "b", " ", "日", "本", "。", "é", "e\u0301", "❤\ufe0f", "👩", "\u200d", "word"]
TEXTS = st.lists(st.sampled_from(SIGNS), max_size=40).map("".join)
STYLES = st.sampled_from(["", "1", "2"])


def wrap_to_lines(text: str, width: int) -> list[str]:
    wrapper = LineWrapper()
    wrapper.push([(text, "")])
    return [render_ansi(line) for line in wrapper.take_lines(width, final=True)]


def test_words_fill_lines_and_are_not_broken() -> None:
    assert wrap_to_lines("the tide comes in twice", 10) == ["the tide", "comes in", "twice"]


def test_a_word_wider_than_a_line_is_broken() -> None:
    assert wrap_to_lines("a abcdefghij b", 4) == ["a", "abcd", "efgh", "ij b"]


def test_east_asian_text_is_wrapped_between_characters_but_never_begins_with_a_stop() -> None:
    assert wrap_to_lines("潮は満ちる。", 10) == ["潮は満ち", "る。"]
    assert wrap_to_lines("潮は満ちる。", 8) == ["潮は満ち", "る。"]
    assert wrap_to_lines("tide潮", 5) == ["tide", "潮"]


def test_combining_marks_and_joined_emoji_stay_together() -> None:
    assert wrap_to_lines("e\u0301e\u0301e\u0301", 2) == ["e\u0301e\u0301", "e\u0301"]
    assert measure_text("❤\ufe0f") == 2
    family = "👩\u200d👩\u200d👧"
    assert wrap_to_lines(family * 2, 6) == [family, family]


def test_neighbours_of_the_same_style_share_their_escapes() -> None:
    assert render_ansi([("a", "1"), ("b", "1"), ("c", ""), ("d", "2")]) == (
        "\x1b[1mab\x1b[0mc\x1b[2md\x1b[0m"
    )
    assert render_ansi([("a", "1"), ("b", "2")]) == "\x1b[1ma\x1b[0;2mb\x1b[0m"
    assert render_ansi([("a", "")]) == "a"


def test_truncated_spans_end_in_an_ellipsis() -> None:
    assert render_ansi(truncate_spans([("abc", ""), ("def", "")], 6)) == "abcdef"
    assert render_ansi(truncate_spans([("abc", ""), ("defg", "")], 6)) == "abcde…"
    assert render_ansi(truncate_spans([("日本語", "")], 4)) == "日…"
    assert render_ansi(truncate_spans([("abc", "")], 1)) == "…"


@given(
    pieces=st.lists(st.tuples(TEXTS, STYLES), max_size=8),
    takes=st.lists(st.booleans(), min_size=8, max_size=8),
    width=st.integers(1, 12),
)
def test_lines_do_not_depend_on_when_they_are_taken(
    pieces: list[tuple[str, str]], takes: list[bool], width: int
) -> None:
    wrapper = LineWrapper()
    lines = []
    for piece, is_taken in zip(pieces, takes, strict=False):
        # A character at a time, and drawn in between.
        for character in piece[0]:
            wrapper.push([(character, piece[1])])
            wrapper.copy().take_lines(width, final=True)
            if is_taken:
                lines += wrapper.take_lines(width, final=False)
    lines += wrapper.take_lines(width, final=True)
    at_once = LineWrapper()
    at_once.push(pieces)
    assert [render_ansi(line) for line in lines] == [
        render_ansi(line) for line in at_once.take_lines(width, final=True)
    ]


@given(text=TEXTS, width=st.integers(2, 12))
def test_no_line_is_too_wide_and_no_text_is_lost(text: str, width: int) -> None:
    # A picture made of several can be wider than a narrow line, and is not torn.
    text = text.replace("\u200d", "")
    for lines in (
        wrap_to_lines(text, width),
        [render_ansi(row) for row in break_lines([(text, "")], width)],
    ):
        assert all(measure_text(line) <= width for line in lines)
        assert "".join("".join(lines).split()) == "".join(text.split())
