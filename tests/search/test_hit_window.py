"""Windows: bounded, and the match is always in them and visible."""

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

# The work is done in threads, so the event loop makes no difference.
pytestmark = pytest.mark.one_loop

COUNTS = st.integers(-(2**70), 2**70)


@pytest.mark.req("search.window.bounded")
@given(before=COUNTS, after=COUNTS)
def test_a_window_has_at_most_sixteen_items_whatever_is_requested(before: int, after: int) -> None:
    clamped_before, clamped_after = clamp_window(before, after)
    assert 0 <= clamped_before <= max(0, before)
    assert 0 <= clamped_after <= max(0, after)
    assert clamped_before + 1 + clamped_after <= MAX_WINDOW_ITEMS
    if before + after <= MAX_WINDOW_ITEMS - 1 and min(before, after) >= 0:
        assert (clamped_before, clamped_after) == (before, after)
    elif min(before, after) >= 0:
        assert clamped_before + 1 + clamped_after == MAX_WINDOW_ITEMS


@pytest.mark.parametrize(
    ("requested", "clamped"),
    [((4, 4), (4, 4)), ((100, 0), (15, 0)), ((0, 100), (0, 15)), ((100, 100), (8, 7))],
)
def test_both_sides_are_reduced_alike(requested: tuple[int, int], clamped: tuple[int, int]) -> None:
    assert clamp_window(*requested) == clamped


WINDOW_SIZES = [(4, 4), (0, 0), (2**62, 2**62), (-3, 5), (15, 1)]


@pytest.mark.req("search.window.match_inside")
@pytest.mark.parametrize("matched", [0, 1, 20, 39])
async def test_the_match_is_in_its_window_wherever_it_is(
    harness: SearchHarness, matched: int
) -> None:
    texts = [f"message {number}" for number in range(40)]
    texts[matched] = "the needle"
    await harness.append_messages(CRAB, *texts)
    for before, after in WINDOW_SIZES:
        hit = await harness.search_one("needle", before=before, after=after)
        clamped_before, clamped_after = clamp_window(before, after)
        ids = [item.id for item in hit.window]
        assert ids == list(
            range(max(0, matched - clamped_before), min(40, matched + clamped_after + 1))
        )
        assert hit.message_id == matched
        assert hit.window[ids.index(matched)].snippet == "the needle"


@pytest.mark.req("search.window.snippet")
async def test_a_long_message_is_cut_around_the_match(harness: SearchHarness) -> None:
    filler = "word " * 2_000
    await harness.append_messages(CRAB, f"{filler}needle {filler}", f"haystack {filler}")
    hit = await harness.search_one("needle")
    matched, other = hit.window
    assert "needle" in matched.snippet
    assert matched.truncated
    assert len(matched.snippet.encode()) <= MAX_SNIPPET_BYTES
    assert other.snippet.startswith("haystack word")
    assert other.truncated
    assert len(other.snippet.encode()) == MAX_SNIPPET_BYTES


async def test_a_huge_message_is_found_by_its_last_word(home: Path) -> None:
    async with open_harness(home) as harness:
        await harness.append_messages(CRAB, "small", f"{'lorem ipsum dolor ' * 200_000}needle")
        for _ in range(2):
            hit = await harness.search_one("needle")
            assert hit.message_id == 1
            assert hit.window[1].snippet.endswith("needle")
            await harness.wait_until_committed()


async def test_a_short_message_is_shown_whole(harness: SearchHarness) -> None:
    text = "é" * (MAX_SNIPPET_BYTES // 2 - 4) + " needle"
    await harness.append_messages(CRAB, text)
    (item,) = (await harness.search_one("needle")).window
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
def test_a_match_begins_at_the_first_matching_word(
    text: str, query: str, expected: int | None
) -> None:
    position = find_match(text, parse_query(query))
    if expected is None or text.isascii():
        assert position == expected
    else:  # approximately, if words are spelt differently in the index
        assert position is not None
        assert 0 <= position <= expected


@given(st.text(max_size=3_000), st.integers(0, 3_000))
def test_a_snippet_is_a_bounded_part_that_shows_the_match(text: str, start: int) -> None:
    start = min(start, len(text))
    snippet = cut_snippet(text, start)
    assert snippet in text
    assert len(snippet.encode()) <= MAX_SNIPPET_BYTES
    if snippet != text and start < len(text):
        assert text[start] in snippet
        assert len(snippet.encode()) > MAX_SNIPPET_BYTES // 4 - 4


@pytest.mark.req("search.window.text")
async def test_messages_are_shown_as_their_text_or_else_their_calls(harness: SearchHarness) -> None:
    await harness.append_messages(
        CRAB,
        "needle",
        make_tool_call("bash", '{"command":"ls"}'),
        make_tool_result("a\nb", "bash"),
        make_tool_call("bash", "{}", "and again"),
        Message("assistant", "done", reasoning="hm"),
    )
    hit = await harness.search_one("needle")
    assert [(i.role, i.snippet, i.tool_name, i.truncated) for i in hit.window] == [
        ("user", "needle", "", False),
        ("assistant", 'bash({"command":"ls"})', "bash", False),
        ("tool", "", "bash", True),
        ("assistant", "and again", "bash", False),
        ("assistant", "done", "", False),
    ]


async def test_every_hit_has_its_own_window(harness: SearchHarness) -> None:
    for number in range(20):
        await harness.append_messages(
            Pair("crab", f"u{number}"), f"before {number}", "needle", f"after {number}"
        )
    for hit in await harness.search("needle", limit=20, before=1, after=1):
        name = hit.sender.removeprefix("u")
        shown = [item.snippet for item in hit.window]
        assert shown == [f"before {name}", "needle", f"after {name}"]
