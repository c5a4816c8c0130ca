"""Windows: bounded, with the match always inside and in sight."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model.messages import Message
from crabtalk.search import MAX_SNIPPET_BYTES, MAX_WINDOW_ITEMS
from crabtalk.search.hit_window import cut_snippet, find_match
from crabtalk.search.results import clamp_window
from crabtalk.search.terms import parse_query
from crabtalk.storage import Pair
from tests.search.search_harness import (
    CRAB,
    SearchHarness,
    make_tool_call,
    make_tool_result,
    open_harness,
)

# Threads do the work; whose loop waits for them makes no difference.
pytestmark = pytest.mark.one_loop

COUNTS = st.integers(-(2**70), 2**70)


@pytest.mark.req("search.window.bounded")
@given(before=COUNTS, after=COUNTS)
def test_a_window_has_at_most_sixteen_items_whatever_is_asked(before: int, after: int) -> None:
    some, others = clamp_window(before, after)
    assert 0 <= some <= max(0, before)
    assert 0 <= others <= max(0, after)
    assert some + 1 + others <= MAX_WINDOW_ITEMS
    if before + after <= MAX_WINDOW_ITEMS - 1 and min(before, after) >= 0:
        assert (some, others) == (before, after)
    elif min(before, after) >= 0:
        assert some + 1 + others == MAX_WINDOW_ITEMS


@pytest.mark.parametrize(
    ("asked", "given"),
    [((4, 4), (4, 4)), ((100, 0), (15, 0)), ((0, 100), (0, 15)), ((100, 100), (8, 7))],
)
def test_both_sides_give_way_alike(asked: tuple[int, int], given: tuple[int, int]) -> None:
    assert clamp_window(*asked) == given


WINDOW_SIZES = [(4, 4), (0, 0), (2**62, 2**62), (-3, 5), (15, 1)]


@pytest.mark.req("search.window.match_inside")
@pytest.mark.parametrize("matched", [0, 1, 20, 39])
async def test_the_match_is_in_its_window_wherever_it_is(talk: SearchHarness, matched: int) -> None:
    texts = [f"message {number}" for number in range(40)]
    texts[matched] = "the needle"
    await talk.append_messages(CRAB, *texts)
    for before, after in WINDOW_SIZES:
        hit = await talk.search_one("needle", before=before, after=after)
        some, others = clamp_window(before, after)
        ids = [item.id for item in hit.window]
        assert ids == list(range(max(0, matched - some), min(40, matched + others + 1)))
        assert hit.message_id == matched
        assert hit.window[ids.index(matched)].snippet == "the needle"


@pytest.mark.req("search.window.snippet")
async def test_a_long_message_is_cut_around_the_match(talk: SearchHarness) -> None:
    filler = "word " * 2_000
    await talk.append_messages(CRAB, f"{filler}needle {filler}", f"haystack {filler}")
    hit = await talk.search_one("needle")
    matched, other = hit.window
    assert "needle" in matched.snippet
    assert matched.truncated
    assert len(matched.snippet.encode()) <= MAX_SNIPPET_BYTES
    assert other.snippet.startswith("haystack word")
    assert other.truncated
    assert len(other.snippet.encode()) == MAX_SNIPPET_BYTES


async def test_a_huge_message_is_found_by_its_last_word(home: Path) -> None:
    async with open_harness(home) as talk:
        await talk.append_messages(CRAB, "small", f"{'lorem ipsum dolor ' * 200_000}needle")
        for _ in range(2):
            hit = await talk.search_one("needle")
            assert hit.message_id == 1
            assert hit.window[1].snippet.endswith("needle")
            await talk.wait_until_committed()


async def test_a_short_message_is_shown_whole(talk: SearchHarness) -> None:
    text = "é" * (MAX_SNIPPET_BYTES // 2 - 4) + " needle"
    await talk.append_messages(CRAB, text)
    (item,) = (await talk.search_one("needle")).window
    assert item.snippet == text
    assert not item.truncated


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("one two three", "three", 8),
        ("one TWO three", "two", 4),
        ("snake_case_name", "case", 6),
        ("hall all", "all", 5),
        ("les naïfs naïve", "naive", 10),
        ("日本語の数据库", "数据", 4),
        ("Straße", "strasse", 0),
        ("nothing here", "needle", None),
        ("rien à voir", "needle", None),
    ],
)
def test_the_place_is_where_the_first_word_begins(
    text: str, query: str, expected: int | None
) -> None:
    found = find_match(text, parse_query(query))
    if expected is None or text.isascii():
        assert found == expected
    else:  # about, where words are not spelt as they are found
        assert found is not None
        assert 0 <= found <= expected


@given(st.text(max_size=3_000), st.integers(0, 3_000))
def test_an_excerpt_is_a_part_that_fits_and_has_the_place(text: str, start: int) -> None:
    start = min(start, len(text))
    cut = cut_snippet(text, start)
    assert cut in text
    assert len(cut.encode()) <= MAX_SNIPPET_BYTES
    if cut != text and start < len(text):
        assert text[start] in cut
        assert len(cut.encode()) > MAX_SNIPPET_BYTES // 4 - 4


@pytest.mark.req("search.window.text")
async def test_messages_read_as_their_text_or_else_as_their_calls(talk: SearchHarness) -> None:
    await talk.append_messages(
        CRAB,
        "needle",
        make_tool_call("bash", '{"command":"ls"}'),
        make_tool_result("a\nb", "bash"),
        make_tool_call("bash", "{}", "and again"),
        Message("assistant", "done", reasoning="hm"),
    )
    hit = await talk.search_one("needle")
    assert [(i.role, i.snippet, i.tool_name, i.truncated) for i in hit.window] == [
        ("user", "needle", "", False),
        ("assistant", 'bash({"command":"ls"})', "bash", False),
        ("tool", "", "bash", True),
        ("assistant", "and again", "bash", False),
        ("assistant", "done", "", False),
    ]


async def test_every_hit_has_a_window_of_its_own(talk: SearchHarness) -> None:
    for number in range(20):
        await talk.append_messages(
            Pair("crab", f"u{number}"), f"before {number}", "needle", f"after {number}"
        )
    for hit in await talk.search("needle", limit=20, before=1, after=1):
        name = hit.sender.removeprefix("u")
        shown = [item.snippet for item in hit.window]
        assert shown == [f"before {name}", "needle", f"after {name}"]
