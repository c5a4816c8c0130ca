"""Tables."""

import pytest

from apps.tui.tests.chat.drawn import in_pieces, whole, widest
from crabtalk_tui.chat.flow import paint
from crabtalk_tui.chat.grid import DECIDING, Grid, split
from crabtalk_tui.chat.look import PLAIN

TABLE = """\
| station | high | remark |
|:--------|-----:|:------:|
| north | 4.21 | new |
| south | 13.9 | `a|b` |
"""


def letters(text: str) -> list[str]:
    return sorted(character for character in text if character.isalpha())


@pytest.mark.req("chat.show.markdown")
def test_columns_are_as_wide_as_they_must_be_and_aligned_as_the_rule_says() -> None:
    assert whole(TABLE) == [
        "station │ high │ remark",
        "────────┼──────┼───────",
        "north   │ 4.21 │  new",
        "south   │ 13.9 │ `a|b`",
    ]


def test_wide_characters_count_as_the_terminal_counts_them() -> None:
    lines = whole("|a|b|\n|-|-|\n|日本|x|\n|é|✅|")
    assert lines == ["a    │ b", "─────┼───", "日本 │ x", "é    │ ✅"]


@pytest.mark.req("chat.show.narrow")
@pytest.mark.parametrize("width", [60, 40, 30, 21])
def test_a_table_wider_than_the_terminal_is_wrapped_in_its_columns(width: int) -> None:
    text = (
        "|name|what it is for|who asks|\n|-|-|-|\n"
        "|tides|says when the water comes and when it goes, for each station|everybody|\n"
    )
    lines = whole(text, width)
    assert widest(lines) <= width
    assert all(line.count("│") == 2 for line in lines if "┼" not in line)
    assert letters("".join(lines)) == letters(text)


@pytest.mark.req("chat.show.narrow")
def test_where_columns_would_be_too_narrow_each_row_is_a_list() -> None:
    header, rule = "|one|two|three|four|five|", "|-|-|-|-|-|"
    assert whole(f"{header}\n{rule}\n|alpha|beta|gamma|delta|epsilon|", 20) == [
        "one: alpha",
        "two: beta",
        "three: gamma",
        "four: delta",
        "five: epsilon",
        "─────",
    ]


@pytest.mark.req("chat.show.settled")
def test_a_long_table_is_settled_row_by_row() -> None:
    grid = Grid(PLAIN, "|n|", "|-|")
    for number in range(DECIDING):
        grid.add(f"|{number}|")
        assert grid.lines(80, final=False) == []
    assert len(grid.live(80)) == DECIDING + 2
    grid.add("|9|")
    assert len(grid.lines(80, final=False)) == DECIDING + 3
    for number in range(100):
        grid.add(f"|{number}|")
        assert [paint(line) for line in grid.lines(80, final=False)] == [str(number)]
        assert grid.live(80) == []


@pytest.mark.req("chat.show.settled")
def test_rows_to_come_may_hold_more_than_those_that_decided() -> None:
    rows = ["|a|b|", "|-|-|", *["|x|y|"] * DECIDING, "|a longer text than before|y|"]
    text = "\n".join(rows)
    lines = whole(text, 20)
    assert widest(lines) <= 20
    assert letters("".join(lines)) == letters(text)
    assert len(lines) > 2 + len(rows) - 2


def test_rows_have_as_many_cells_as_the_header() -> None:
    assert whole("|a|b|\n|-|-|\n|1|\n|1|2|3|") == ["a │ b", "──┼──", "1 │", "1 │ 2"]


def test_bars_in_code_and_behind_a_backslash_are_none() -> None:
    assert split(r"| a \| b | `c|d` | e |") == ["a | b", "`c|d`", "e"]
    assert split("a|b") == ["a", "b"]


def test_bars_without_a_rule_are_no_table() -> None:
    assert whole("|x| is the size\nof x") == ["|x| is the size of x"]
    assert whole("|a|b|\n|-|") == ["|a|b|", "|-|"]


def test_a_table_ends_where_its_bars_do() -> None:
    assert whole("|a|\n|-|\n|1|\nafter")[-2:] == ["", "after"]


@pytest.mark.req("chat.show.stream_is_whole")
def test_a_table_streamed_is_the_table() -> None:
    text = TABLE + "".join(f"| {n} | {n * n} | {'x' * (n % 9)} |\n" for n in range(40))
    for width in (80, 20):
        assert in_pieces(text, [1] * len(text), width) == whole(text, width)
