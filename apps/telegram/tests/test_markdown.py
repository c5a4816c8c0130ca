"""Markdown for Telegram: the markup is valid, and the visible text is the same without it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.telegram.tests.markdown_v2_parser import (
    MarkdownEntity,
    MarkdownV2Error,
    parse_markdown_v2,
)
from crabtalk_telegram.markdown import has_table, render_markdown_v2, render_plain
from crabtalk_telegram.service import count_utf16_units

# Pieces of what agents write, combined at random.
PIECES = st.sampled_from(
    [
        *("*", "**", "***", "_", "__", "~~", "`", "``", "```", "\n```python\n", "\n```\n"),
        *("[", "](", ")", "![", "](https://a.b/c_d)", "](x y)", "<https://a.b>", "&lt;"),
        *("&#128512;", "\n", "\n\n", "\n- ", "\n  * ", "\n1. ", "\n> ", "\n# ", "\n---\n"),
        *("- [x] ", "\n| a | b |", "\n|---|---|\n", "|", "\\", "\\*", " ", "word", "snake_case"),
        *("2 * 3", "é", "👩\u200d👩\u200d👧", "漢字", "https://a.b/_x_(y)", "{}", "=", "+", "."),
        *("!", "#", ">", "\r\n", "\t", "<b>", "||", "@me"),
    ]
)
TEXTS = st.one_of(st.lists(PIECES, max_size=24).map("".join), st.text(max_size=60))


@pytest.mark.req("telegram.markdown")
@settings(max_examples=250)
@given(TEXTS)
def test_any_text_can_be_rendered_and_shows_the_same_as_plain_text(text: str) -> None:
    visible, _ = parse_markdown_v2(render_markdown_v2(text))
    assert visible == render_plain(text)


@pytest.mark.req("telegram.measure")
@settings(max_examples=150)
@given(TEXTS)
def test_the_visible_text_is_never_longer_than_measured(text: str) -> None:
    if not has_table(text):
        assert count_utf16_units(render_plain(text)) <= count_utf16_units(text)


@pytest.mark.req("telegram.markdown")
@pytest.mark.parametrize(
    ("text", "shown", "entities"),
    [
        ("**a** b", "a b", [MarkdownEntity("bold", "a")]),
        ("*a* _b_", "a b", [MarkdownEntity("italic", "a"), MarkdownEntity("italic", "b")]),
        (
            "*a*_b_",
            "ab",
            [
                MarkdownEntity("italic", "a"),
                MarkdownEntity("bold", ""),
                MarkdownEntity("italic", "b"),
            ],
        ),
        ("***a***", "a", [MarkdownEntity("bold", "a"), MarkdownEntity("italic", "a")]),
        ("**a *b* c**", "a b c", [MarkdownEntity("italic", "b"), MarkdownEntity("bold", "a b c")]),
        ("**a **b** c**", "a b c", [MarkdownEntity("bold", "a b c")]),
        ("~~a~~", "a", [MarkdownEntity("strike", "a")]),
        (
            "`a_b` `` c`d ``",
            "a_b c`d",
            [MarkdownEntity("code", "a_b"), MarkdownEntity("code", "c`d")],
        ),
        ("snake_case_name 2 * 3 * 4", "snake_case_name 2 * 3 * 4", []),
        ("**half", "**half", []),
        ("# C# ##", "C#", [MarkdownEntity("bold", "C#")]),
        ("# A **title**", "A title", [MarkdownEntity("bold", "A title")]),
        ("- a\n  - b\n2. c", "• a\n  • b\n2. c", []),
        ("- [ ] a\n- [x] b", "☐ a\n☑ b", []),
        ("> said\n> twice", "said\ntwice", []),
        ("a\n\n---\nb", "a\n\n———\nb", []),
        ("[x](https://a.b/(c))", "x", [MarkdownEntity("link", "x", "https://a.b/(c)")]),
        ("[x](notes.md)", "x (notes.md)", []),
        ("![](https://a.b/c.png)", "https://a.b/c.png", None),
        ("https://a.b/_c_*d", "https://a.b/_c_*d", []),
        ("<https://a.b>", "https://a.b", []),
        ("1 &lt; 2 \\*", "1 < 2 *", []),
        (
            "```python\na = `b` \\ c\n```",
            "a = `b` \\ c",
            [MarkdownEntity("pre", "a = `b` \\ c", "python")],
        ),
        ("   ```\n   a\n   ```\nb", "a\nb", [MarkdownEntity("pre", "a")]),
        ("```\nnever closed", "never closed", [MarkdownEntity("pre", "never closed")]),
        ("~~~\n```\n~~~", "```", [MarkdownEntity("pre", "```")]),
    ],
)
def test_markdown_is_rendered_as_commonmark_defines_it(
    text: str, shown: str, entities: list[MarkdownEntity] | None
) -> None:
    visible, visible_entities = parse_markdown_v2(render_markdown_v2(text))
    assert visible == shown
    if entities is not None:
        assert sorted(visible_entities, key=repr) == sorted(entities, key=repr)


@pytest.mark.req("telegram.markdown")
def test_a_table_is_columns_of_fixed_width() -> None:
    text = "| who | says |\n|:--|--:|\n| **crab** | `ok` |\n| 漢字 | a\\|b |\nafter"
    visible, entities = parse_markdown_v2(render_markdown_v2(text))
    table = "who  | says\n-----+-----\ncrab | ok\n漢字 | a|b"
    assert visible == f"{table}\nafter"
    assert entities == [MarkdownEntity("pre", table)]


@pytest.mark.req("telegram.measure")
def test_a_table_with_huge_columns_is_left_unchanged() -> None:
    text = "|a|b|\n|-|-|\n" + "|x|y|\n" * 50 + f"|{'z' * 200}|y|"
    assert count_utf16_units(render_plain(text)) <= 2 * count_utf16_units(text)


@pytest.mark.parametrize(
    "piece",
    [
        "[",
        "[a](",
        "[" * 9 + "]" * 9,
        "*a ",
        "a* ",
        "_*~~",
        "`a``",
        "|",
        "- ",
        "&",
        "\\",
        "**a*_",
        " ",
    ],
)
def test_long_repetitive_texts_are_parsed_too(piece: str) -> None:
    for text in (piece * (4096 // len(piece)), f"# x{piece * 1000}y", f"|a|\n|{piece * 1000}"):
        assert parse_markdown_v2(render_markdown_v2(text))[0] == render_plain(text)


def test_the_test_parser_refuses_what_telegram_refuses() -> None:
    for text in ("a.b", "*a", "_a", "a_", "```a", "[a](b", "1-2", "a!", "`a", "__a_"):
        with pytest.raises(MarkdownV2Error):
            parse_markdown_v2(text)
