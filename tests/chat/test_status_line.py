"""The status line, and the parts it keeps when there is little room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from crabtalk.chat.status_line import StatusLine, StatusState, format_duration, format_tokens


def render_status(status: StatusLine, width: int = 80) -> str:
    return "".join(text for _, text in status.render_line(width))


@pytest.mark.req("chat.status")
def test_it_shows_agent_model_context_cost_and_state() -> None:
    status = StatusLine("crab", "qwen3", 12_345, 100_000, "$0.02")
    assert render_status(status) == "crab · qwen3 · █░░░░░░░ 12k/100k · $0.02 · ready"
    assert render_status(StatusLine("crab")) == "crab · ready"
    assert render_status(StatusLine("crab", "qwen3", 950)) == "crab · qwen3 · 950 tokens · ready"


@pytest.mark.req("chat.status.compact")
def test_it_suggests_compact_beyond_the_users_threshold() -> None:
    below = StatusLine("crab", context=999, compact_at=1000)
    beyond = StatusLine("crab", context=1000, compact_at=1000)
    never = StatusLine("crab", context=10**9)
    assert "/compact" in render_status(beyond, 40)
    assert "/compact" not in render_status(below)
    assert "/compact" not in render_status(never)


@pytest.mark.req("chat.status.compact")
def test_it_suggests_compact_before_the_models_context_is_full() -> None:
    small = StatusLine("crab", "tiny", 316, 100_000, limit=2048)
    assert render_status(small) == "crab · tiny · █░░░░░░░ 316/2.0k · ready"
    assert "/compact" in render_status(small._replace(context=1536))
    assert "/compact" not in render_status(small._replace(context=1535))
    large = small._replace(context=12_345, limit=1_000_000)
    assert "12k/100k" in render_status(large)
    assert "/compact" in render_status(large._replace(context=100_000))


def test_without_a_threshold_it_shows_the_context_and_never_suggests_compact() -> None:
    line = render_status(StatusLine("crab", context=2000, limit=2048))
    assert "2.0k/2.0k" in line
    assert "/compact" not in line


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("running", "3s Esc stops"),
        ("compacting", "compacting 3s Esc stops"),
        ("stopping", "stopping"),
        ("asking", "a question waits: Enter"),
        ("away", "no daemon"),
    ],
)
@pytest.mark.req("chat.status")
def test_it_shows_the_state_in_40_columns(state: StatusState, words: str) -> None:
    status = StatusLine(
        "crab", "a-model-with-a-long-name", 1_234_567, 2_000_000, "$12.34", state, 3.2
    )
    assert words in render_status(status, 40)
    assert "crab" in render_status(status, 40)


def test_a_hint_is_dropped_last() -> None:
    status = StatusLine("crab", "qwen3", 12_345, state="running", hint="Esc again leaves")
    assert render_status(status, 40) == "crab · 0s Esc stops · Esc again leaves"
    assert render_status(status, 35) == "0s Esc stops · Esc again leaves"


@given(
    st.builds(
        StatusLine,
        st.text(min_size=1, max_size=40),
        st.text(max_size=40),
        st.integers(0, 2**40),
        st.integers(0, 2**40),
        st.sampled_from(["", "$0.01", "$1,234.56"]),
        st.sampled_from(["ready", "running", "compacting", "stopping", "asking", "away"]),
        st.floats(0, 1e6),
        st.integers(0, 16),
        st.sampled_from(["", "Ctrl+C again leaves"]),
        stops=st.sampled_from(["Esc", "Ctrl+C"]),
        limit=st.integers(0, 2**40),
    ),
    st.integers(1, 120),
)
@pytest.mark.req("chat.status")
def test_it_is_never_wider_than_the_terminal(status: StatusLine, width: int) -> None:
    assert get_cwidth(render_status(status, width)) <= width
    assert "\n" not in render_status(status, width)


def test_token_counts_and_durations_are_short() -> None:
    assert [format_tokens(n) for n in (0, 950, 1234, 12_345, 1_234_567)] == [
        "0",
        "950",
        "1.2k",
        "12k",
        "1.2M",
    ]
    assert [format_duration(s) for s in (0.4, 59, 61, 3725)] == ["0s", "59s", "1m01s", "1h02m"]
