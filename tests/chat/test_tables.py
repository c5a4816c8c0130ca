"""Layout of Markdown tables."""

import pytest

from crabtalk.chat.line_wrapping import render_ansi
from crabtalk.chat.tables import SAMPLE_ROWS, MarkdownTable, split_cells
from crabtalk.chat.theme import PLAIN_THEME
from tests.chat.transcript_drawing import measure_widest, render_in_pieces, render_markdown

TABLE = """\
| station | high | remark |
|:--------|-----:|:------:|
| north | 4.21 | new |
| south | 13.9 | `a|b` |
"""


def sort_letters(text: str) -> list[str]:
    return sorted(character for character in text if character.isalpha())


@pytest.mark.req("chat.show.markdown")
def test_columns_fit_their_content_and_are_aligned() -> None:
    assert render_markdown(TABLE) == [
        "station │ high │ remark",
        "────────┼──────┼───────",
        "north   │ 4.21 │  new",
        "south   │ 13.9 │ `a|b`",
    ]


def test_wide_characters_count_two_columns() -> None:
    lines = render_markdown("|a|b|\n|-|-|\n|日本|x|\n|é|✅|")
    assert lines == ["a    │ b", "─────┼───", "日本 │ x", "é    │ ✅"]


@pytest.mark.req("chat.show.narrow")
@pytest.mark.parametrize("width", [60, 40, 30, 21])
def test_a_table_wider_than_the_terminal_is_wrapped_in_its_columns(width: int) -> None:
    text = (
        "|name|what it is for|who asks|\n|-|-|-|\n"
        "|tides|says when the water comes and when it goes, for each station|everybody|\n"
    )
    lines = render_markdown(text, width)
    assert measure_widest(lines) <= width
    assert all(line.count("│") == 2 for line in lines if "┼" not in line)
    assert sort_letters("".join(lines)) == sort_letters(text)


@pytest.mark.req("chat.show.narrow")
def test_if_columns_would_be_too_narrow_each_row_is_a_list() -> None:
    header, rule = "|one|two|three|four|five|", "|-|-|-|-|-|"
    assert render_markdown(f"{header}\n{rule}\n|alpha|beta|gamma|delta|epsilon|", 20) == [
        "one: alpha",
        "two: beta",
        "three: gamma",
        "four: delta",
        "five: epsilon",
        "─────",
    ]


@pytest.mark.req("chat.show.settled")
def test_a_long_table_is_given_out_row_by_row() -> None:
    table = MarkdownTable(PLAIN_THEME, "|n|", "|-|")
    for number in range(SAMPLE_ROWS):
        table.add_row(f"|{number}|")
        assert table.take_lines(80, final=False) == []
    assert len(table.live_lines(80)) == SAMPLE_ROWS + 2
    table.add_row("|9|")
    assert len(table.take_lines(80, final=False)) == SAMPLE_ROWS + 3
    for number in range(100):
        table.add_row(f"|{number}|")
        assert [render_ansi(line) for line in table.take_lines(80, final=False)] == [str(number)]
        assert table.live_lines(80) == []


@pytest.mark.req("chat.show.settled")
def test_later_rows_wider_than_the_sample_are_wrapped() -> None:
    rows = ["|a|b|", "|-|-|", *["|x|y|"] * SAMPLE_ROWS, "|a longer text than before|y|"]
    text = "\n".join(rows)
    lines = render_markdown(text, 20)
    assert measure_widest(lines) <= 20
    assert sort_letters("".join(lines)) == sort_letters(text)
    assert len(lines) > 2 + len(rows) - 2


def test_rows_have_as_many_cells_as_the_header() -> None:
    assert render_markdown("|a|b|\n|-|-|\n|1|\n|1|2|3|") == ["a │ b", "──┼──", "1 │", "1 │ 2"]


def test_bars_in_code_and_after_a_backslash_do_not_separate_cells() -> None:
    assert split_cells(r"| a \| b | `c|d` | e |") == ["a | b", "`c|d`", "e"]
    assert split_cells("a|b") == ["a", "b"]


def test_bars_without_a_delimiter_row_are_no_table() -> None:
    assert render_markdown("|x| is the size\nof x") == ["|x| is the size of x"]
    assert render_markdown("|a|b|\n|-|") == ["|a|b|", "|-|"]


def test_a_table_ends_at_a_line_without_bars() -> None:
    assert render_markdown("|a|\n|-|\n|1|\nafter")[-2:] == ["", "after"]


@pytest.mark.req("chat.show.stream_is_whole")
def test_a_streamed_table_is_the_same_as_a_whole_one() -> None:
    text = TABLE + "".join(f"| {n} | {n * n} | {'x' * (n % 9)} |\n" for n in range(40))
    for width in (80, 20):
        assert render_in_pieces(text, [1] * len(text), width) == render_markdown(text, width)
