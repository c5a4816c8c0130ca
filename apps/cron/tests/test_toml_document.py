"""The text of crons.toml: the lines of its keys, and the removal of entries."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk_cron.toml_document import (
    DocumentError,
    find_entry_lines,
    parse_document,
    remove_entry,
)

TEXT = '''# What I want done.
tz = "UTC"  # all of it

# First, the feeds.
[[cron]]
id = 1
schedule = "@hourly"  # often

# A reminder.
  [[ cron ]]
id = 2
message = """
[[cron]]
id = 3
# not a comment
"""
schedule = "@daily"

# [[cron]]
# id = 7

[["cron"]]  # the last
id = 4
list = [
  [1],
  [2],
]
# The end.
'''


def test_each_key_has_its_line_even_after_a_string_that_looks_like_a_table() -> None:
    assert find_entry_lines(TEXT) == [
        {"": 5, "id": 6, "schedule": 7},
        {"": 10, "id": 11, "message": 12, "schedule": 17},
        {"": 22, "id": 23, "list": 24},
    ]


@pytest.mark.req("cron.once.comments")
def test_an_entry_is_removed_with_exactly_its_lines() -> None:
    lines = TEXT.splitlines(keepends=True)
    assert remove_entry(TEXT, 0) == "".join(lines[:4] + lines[8:])
    assert remove_entry(TEXT, 1) == "".join(lines[:9] + lines[18:])
    assert remove_entry(TEXT, 2) == "".join(lines[:21] + lines[27:])


@pytest.mark.req("cron.once.comments")
def test_every_comment_survives_the_removal_of_any_entry() -> None:
    comments = [
        "# What I",
        "# all of it",
        "# First",
        "# A rem",
        "# [[cron]]",
        "# id = 7",
        "# The end",
    ]
    for number in range(3):
        remaining = remove_entry(TEXT, number)
        assert all(comment in remaining for comment in comments)


@pytest.mark.req("cron.once.comments")
def test_windows_line_ends_and_a_missing_last_line_end_are_preserved() -> None:
    text = "# a\r\n[[cron]]\r\nid = 1\r\n\r\n# b\r\n[[cron]]\r\nid = 2"
    assert remove_entry(text, 0) == "# a\r\n# b\r\n[[cron]]\r\nid = 2"
    assert remove_entry(text, 1) == "# a\r\n[[cron]]\r\nid = 1\r\n\r\n# b\r\n"


@pytest.mark.req("cron.once.comments")
def test_subtables_of_an_entry_are_removed_with_it() -> None:
    text = "[[cron]]\nid = 1\n[cron.notes]\na = 1\n[other]\nb = 2\n[[cron]]\nid = 2\n"
    assert remove_entry(text, 0) == "[other]\nb = 2\n[[cron]]\nid = 2\n"


@pytest.mark.parametrize("text", ["cron = [{id = 1}, {id = 2}]\n", "cron = [\n{id = 1},\n]\n"])
@pytest.mark.req("cron.once.comments")
def test_entries_that_are_not_tables_of_their_own_are_not_removed(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a \[\[cron\]\] table of its own"):
        remove_entry(text, 0)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = \n", 2),
        ("[[cron]]\nid = 1\nid = 2\n", 3),
        ('a = 1\nb = """\nc\n', 3),
        ("a = 1\n[[cron]\n", 2),
    ],
)
@pytest.mark.req("cron.reload.line")
def test_invalid_toml_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_document(text)
    assert caught.value.line == line
    assert "line" not in str(caught.value)


def test_too_deep_nesting_is_refused() -> None:
    with pytest.raises(DocumentError):
        parse_document("a = " + "[" * 100_000)


VALUES = st.sampled_from(['"x"', "1", '"""\n[[cron]]\n# no\n"""', "[\n1,\n]", "{ a = 1 }", "'#'"])
ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["", "# above\n", "\n\n# apart\n\n", "  # a\n# b\n"]),
        st.lists(VALUES, max_size=3),
        st.sampled_from(["", "\n", "# below\n", "\n# below\n\n"]),
    ),
    min_size=1,
    max_size=5,
)


@given(ENTRIES, st.data())
@pytest.mark.req("cron.once.comments")
def test_in_any_file_the_other_entries_and_all_comments_stay(
    entries: list[tuple[str, list[str], str]], data: st.DataObject
) -> None:
    text = ""
    for number, (comments_above, values, comments_below) in enumerate(entries):
        keys = "".join(f"k{index} = {value}\n" for index, value in enumerate(values))
        text += f"{comments_above}[[cron]]\nid = {number}\n{keys}{comments_below}"
    removed = data.draw(st.integers(0, len(entries) - 1))
    remaining = remove_entry(text, removed)
    expected = tomllib.loads(text)["cron"]
    del expected[removed]
    assert tomllib.loads(remaining).get("cron", []) == expected
    for comment in ("# above", "# apart", "# a\n", "# b", "# below"):
        assert remaining.count(comment) == text.count(comment)
