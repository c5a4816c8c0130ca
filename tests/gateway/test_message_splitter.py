"""The message splitter: long answers become messages, and no word is lost."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crabtalk.gateway.message_splitter import (
    cut_piece,
    find_open_fence,
    is_boundary,
    render_piece,
    split_text,
)

pytestmark = pytest.mark.req("gateways.splitting")


def count_utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


MEASURES = (len, count_utf16_units, lambda text: len(text.encode(errors="surrogatepass")))
FAMILY = "👩‍👩‍👧‍👦"
BLOCKS = ["```", "```python\n", "\n```\n", "~~~\n", "`x`", "- item\n", "# Head\n\n"]
LETTERS = [FAMILY, "🇩🇪🇫🇷", "👍🏽", "é", "한국", "ᄒᆞᆫ", "沙", "é"]
WORDS = st.sampled_from(["a", "sand", "shell ", " ", "\n", "\n\n", "\r\n", *BLOCKS, *LETTERS])
TEXTS = st.lists(WORDS, max_size=120).map("".join) | st.text(max_size=400)


@given(TEXTS, st.integers(16, 90), st.sampled_from(MEASURES))
@example("```" + "x" * 200 + "\n```", 40, len)
@example("```python\n" + "print()\n" * 30 + "```\nend", 60, count_utf16_units)
@example(FAMILY * 30, 40, count_utf16_units)
def test_pieces_are_short_enough_and_together_the_text(text: str, limit: int, measure) -> None:  # type: ignore[no-untyped-def]
    pieces = list(split_text(text, limit, measure))
    rest = text
    for piece in pieces:
        assert measure(piece.text) <= limit
        assert piece.taken >= 1
        rest = rest[piece.taken :]
    assert not rest.strip(), "all of it is taken"


@given(TEXTS, st.integers(24, 90))
def test_splitting_adds_nothing_but_fences(text: str, limit: int) -> None:
    position, fence = 0, ""
    for piece in split_text(text, limit, count_utf16_units):
        part = text[position : position + piece.taken]
        words = part.strip("\n").rstrip()
        before = [f"{fence}\n{words}"] if fence else []
        begins = next(item for item in (*before, words, part) if piece.text.startswith(item))
        assert re.fullmatch(r"(\n(`{3,}|~{3,}))?", piece.text.removeprefix(begins))
        position, fence = position + piece.taken, piece.fence


@given(TEXTS, st.integers(40, 90))
def test_no_piece_leaves_a_block_open(text: str, limit: int) -> None:
    pieces = list(split_text(text, limit, len))
    for piece in pieces:
        if piece.text.count("\n") and len(piece.text) < limit - 8:
            assert find_open_fence(piece.text) == ""


def test_paragraphs_are_not_split_if_they_fit() -> None:
    text = "One two three.\n\nFour five six.\n\nSeven eight nine."
    assert [piece.text for piece in split_text(text, 35, len)] == [
        "One two three.\n\nFour five six.",
        "Seven eight nine.",
    ]


def test_a_code_block_that_fits_is_not_cut() -> None:
    text = "Before.\n```\none\ntwo\n```\nAfter, and some more words."
    assert [piece.text for piece in split_text(text, 30, len)] == [
        "Before.\n```\none\ntwo\n```",
        "After, and some more words.",
    ]


def test_a_code_block_that_does_not_fit_is_closed_and_opened_again() -> None:
    code = "\n".join(f"line {number}" for number in range(10))
    pieces = [piece.text for piece in split_text(f"```python\n{code}\n```", 40, len)]
    assert len(pieces) > 2
    assert all(text.startswith("```python\nline") for text in pieces)
    assert all(text.endswith("\n```") for text in pieces)
    assert re.findall(r"line \d", "".join(pieces)) == code.split("\n")


def test_a_code_block_ends_only_at_its_own_kind_of_fence() -> None:
    assert find_open_fence("````md\n```\nx") == "````md"
    assert find_open_fence("````md\n```\nx\n````") == ""
    assert find_open_fence("~~~\n```") == "~~~"
    assert find_open_fence("``` a ` b") == "", "a line of its own marks is no block"


@pytest.mark.parametrize("character", [FAMILY, "🇩🇪", "👍🏽", "é", "각", "\r\n", "☁️"])
def test_a_grapheme_is_not_split(character: str) -> None:
    text = "ab" + character + "cd"
    inner_places = range(3, 2 + len(character))
    assert not any(is_boundary(text, position) for position in inner_places)
    assert is_boundary(text, 2)
    assert is_boundary(text, 2 + len(character))
    for piece in split_text(character * 60, 24 if character != FAMILY else 30, len):
        assert piece.text.count(character) * len(character) >= len(piece.text.rstrip()) - 1


def test_flags_are_cut_in_pairs() -> None:
    assert [is_boundary("🇩🇪🇫🇷", position) for position in range(5)] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_a_surrogate_pair_is_not_cut() -> None:
    assert not is_boundary("a\ud83d\ude00b", 2)


def test_a_text_that_fits_is_unchanged() -> None:
    assert cut_piece("hello", 16, len) == render_piece("hello", 5, "")
    assert list(split_text("  \n", 16, len)) == []
