"""ProgressThrottle: limited in rate, and in order."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.mcp.host.progress import (
    INTERVAL,
    MAX_TEXT_LENGTH,
    ProgressThrottle,
    build_progress,
)
from crabtalk.mcp.messages import McpProgress, encode_frame


@pytest.mark.req("mcp.progress.bounded")
async def test_of_rapid_progress_the_first_is_sent_at_once_and_the_latest_after_the_interval() -> (
    None
):
    loop = asyncio.get_running_loop()
    sent: list[tuple[float, McpProgress]] = []
    latest = asyncio.Event()

    def tell(progress: McpProgress) -> None:
        sent.append((loop.time(), progress))
        if progress.progress == 1000:
            latest.set()

    reports = ProgressThrottle(7, tell)
    for step in range(1, 1001):
        reports.report(step, 1000, None)
        assert len(sent) == 1, "there was no pause yet"
    async with asyncio.timeout(10):
        await latest.wait()
    assert [progress.text for _, progress in sent] == ["1/1000", "1000/1000"]
    assert sent[1][0] - sent[0][0] >= INTERVAL * 0.9
    reports.close()
    assert len(sent) == 2, "what was told is not told again"


@pytest.mark.req("mcp.progress.feed")
async def test_the_last_progress_is_sent_before_close_and_none_after_it() -> None:
    sent: list[str] = []
    reports = ProgressThrottle(7, lambda progress: sent.append(progress.text))
    for step in (1, 2, 3):
        reports.report(step, None, f"step {step}")
    reports.close()
    assert sent == ["step 1", "step 3"]
    reports.report(4, None, "late")
    await asyncio.sleep(2 * INTERVAL)
    assert sent == ["step 1", "step 3"]


@pytest.mark.req("mcp.progress.values")
@pytest.mark.parametrize(
    ("progress", "total", "message", "expected"),
    [
        (3, 10, None, ("3/10", 3, 10)),
        (3, 10, "", ("3/10", 3, 10)),
        (3, 10, "walking", ("walking", 3, 10)),
        (3, None, None, ("3", 3, None)),
        (0, 10, None, ("0/10", 0, 10)),
        (0.25, 1, None, ("0.25/1", 0.25, 1)),
        (123456789, 987654321, None, ("123456789/987654321", 123456789, 987654321)),
        (1e300, None, None, ("1e+300", 1e300, None)),
        (11, 10, None, ("11", 11, None)),
        (0, 0, None, ("0", 0, None)),
        (3, -1, None, ("3", 3, None)),
        (3, math.nan, None, ("3", 3, None)),
        (3, math.inf, None, ("3", 3, None)),
        (-3, 10, None, ("", None, None)),
        (-3, 10, "back", ("back", None, None)),
        (math.nan, 10, None, ("", None, None)),
        (math.inf, math.inf, "on", ("on", None, None)),
        (3, None, " two\n\twords\r\n", ("two words", 3, None)),
        (3, None, "half \ud800", ("half ?", 3, None)),
    ],
)
def test_invalid_numbers_are_left_out_and_texts_are_on_one_line(
    progress: float,
    total: float | None,
    message: str | None,
    expected: tuple[str, float | None, float | None],
) -> None:
    assert build_progress(7, progress, total, message) == McpProgress(7, *expected)


@pytest.mark.req("mcp.progress.values")
@given(st.floats(), st.none() | st.floats(), st.none() | st.text())
def test_any_progress_message_fits_a_frame_and_is_valid(
    progress: float, total: float | None, message: str | None
) -> None:
    built = build_progress(7, progress, total, message)
    assert encode_frame(built)
    assert len(built.text.splitlines()) <= 1
    if built.progress is not None:
        assert 0 <= built.progress < math.inf
    if built.total is not None:
        assert built.progress is not None
        assert built.progress <= built.total < math.inf


@pytest.mark.req("mcp.progress.bounded")
def test_long_texts_are_truncated() -> None:
    assert len(build_progress(7, 1, None, "waves " * 1_000_000).text) <= MAX_TEXT_LENGTH
