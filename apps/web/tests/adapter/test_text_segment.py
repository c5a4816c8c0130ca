"""Text segments: pieces that stand alone, for any text split in any way."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk_web.adapter.text_segment import HARD_LIMIT, SOFT_LIMIT, TextSegment, split_text

WORDS = "word " * 300 + "\n"


def split_texts(*texts: str) -> list[str]:
    segment = TextSegment()
    ready = [piece for text in texts for piece in segment.add(text)]
    return [*ready, *segment.take_rest()]


@pytest.mark.req("adapter.text.early")
def test_a_short_text_is_one_piece_without_the_line_ends_around_it() -> None:
    assert split_texts("\r\n\na\n\n", "b\n") == ["a\n\nb"]
    assert split_texts("\n", " \n") == []


@pytest.mark.req("adapter.text.early")
def test_a_piece_ends_between_paragraphs() -> None:
    found = split_texts(*[WORDS] * 5, "\n", WORDS)
    assert [len(piece) for piece in found] == [len(WORDS) * 5 - 1, len(WORDS) - 1]


@pytest.mark.req("adapter.text.early")
@pytest.mark.parametrize("fence", ["```", "~~~~", "  ```python"])
def test_no_piece_ends_within_a_block_of_code(fence: str) -> None:
    closing = fence.strip().rstrip("python")
    block = f"{fence}\n{WORDS}\n{WORDS}\n{closing[:2]}\n{WORDS}\n{closing}\n"
    assert split_texts(block, "\n", "after") == [block.rstrip("\n"), "after"]


@pytest.mark.req("adapter.text.early")
def test_a_block_of_code_without_end_is_closed_and_opened_again() -> None:
    line = "x = 1  # " + "y" * 91 + "\n"
    code = "```python\n" + line * 2000
    found = split_texts(code)
    assert len(found) == -(-len(code) // HARD_LIMIT)
    assert all(len(piece) <= HARD_LIMIT + 10 for piece in found)
    assert all(piece.startswith("```python\n") for piece in found)
    assert all(piece.endswith("\n```") for piece in found[:-1])
    assert (
        "".join(p.removeprefix("```python\n").removesuffix("```") for p in found[:-1]).count(line)
        + found[-1].count(line.rstrip())
        == 2000
    )


@pytest.mark.req("adapter.text.size")
@pytest.mark.parametrize("letter", ["x", "🦀", " ", "`", "\n`"])
def test_a_megabyte_of_any_text_is_split_into_small_pieces(letter: str) -> None:
    text = letter * (1_000_000 // len(letter))
    for source in ([text], [text[n : n + 7777] for n in range(0, len(text), 7777)]):
        found = split_texts(*source)
        assert all(len(piece) <= HARD_LIMIT + 8 for piece in found)
        if letter.strip() and letter == letter.strip() and letter != "`":
            assert "".join(found) == text


@pytest.mark.req("adapter.text.size")
def test_a_code_block_with_a_very_long_fence_line_still_ends() -> None:
    assert sum(map(len, split_texts("```" + "x" * 300_000 + "\n" + "y" * 300_000))) >= 600_000


@pytest.mark.req("adapter.text.early")
@given(st.lists(st.text(alphabet="ab`~ \n", max_size=20), max_size=30), st.integers(1, 7))
def test_the_text_is_the_same_however_it_was_split(texts: list[str], size: int) -> None:
    whole = "".join(texts)
    resplit = [whole[n : n + size] for n in range(0, len(whole), size)]
    for found in (split_texts(*texts), split_texts(*resplit), list(split_text(whole))):
        assert "".join("".join(found).split()) == "".join(whole.split())


@pytest.mark.req("adapter.text.size")
@pytest.mark.clock
def test_a_long_text_in_tiny_pieces_is_fast() -> None:
    """One word at a time, without paragraphs: the work must not grow with the pending text."""

    def took(count: int) -> float:
        segment, started = TextSegment(), time.process_time()
        for _ in range(count):
            for _ in segment.add("word "):
                pass
        return time.process_time() - started

    took(1000)
    assert took(200_000) < 40 * took(20_000) + 1


def test_the_bounds_are_in_order() -> None:
    assert 0 < SOFT_LIMIT < HARD_LIMIT


@pytest.mark.req("adapter.text.early")
@given(st.lists(st.sampled_from(["a", "b\n\n", "x" * 5000, "```\n", "y\n" * 40_000]), max_size=12))
def test_pending_and_written_characters_add_up(pieces: list[str]) -> None:
    """Except for the line that opens a code block again, which is repeated."""
    segment = TextSegment()
    handed: list[str] = []
    for piece in pieces:
        handed += segment.add(piece)
    text = "".join(pieces)
    rest = "".join(text[len(text) - segment.pending_size :].split())
    assert "".join(segment.text.split()).removeprefix("```").endswith(rest.removeprefix("```"))
    written = "".join("".join(handed).split()).replace("```", "")
    before = "".join(text[: len(text) - segment.pending_size].split()).replace("```", "")
    assert written == before
