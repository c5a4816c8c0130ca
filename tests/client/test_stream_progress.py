"""StreamProgress with streams that are cut anywhere and restarted from the log."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.client.stream_progress import StreamProgress
from crabtalk.protocol import wire

Named = tuple[str, wire.StreamEvent]
WORDS = st.text("ab ", min_size=1, max_size=6)
STEPS = st.lists(
    st.tuples(st.lists(WORDS, max_size=3), st.lists(WORDS, max_size=3), st.integers(0, 3)),
    min_size=1,
    max_size=4,
)


def make_event(name: str, **fields: object) -> Named:
    message = wire.StreamEvent()
    for field, value in fields.items():
        setattr(getattr(message, name), field, value)
    getattr(message, name).SetInParent()
    return name, message


def make_tool_start(count: int, *, early: bool) -> Named:
    name, message = make_event("tool_start")
    # Ids repeat in each step, as with some models.
    message.tool_start.calls.extend(wire.ToolCallInfo(id=f"call_{n}") for n in range(count))
    if early:
        message.tool_start.early = True
    return name, message


def make_stream(steps: list[tuple[list[str], list[str], int]], *, is_live: bool) -> Iterator[Named]:
    """A live stream, or the same from the log: whole texts, results in call order."""
    yield make_event("start", agent="crab")
    for thoughts, words, count in steps:
        for name, pieces in (("thinking", thoughts), ("chunk", words)):
            kind = "text" if name == "chunk" else name
            if "".join(pieces):
                yield make_event(f"{kind}_start", agent="crab")
                for piece in pieces if is_live else ["".join(pieces)]:
                    yield make_event(name, content=piece)
                yield make_event(f"{kind}_end", agent="crab")
        if count:
            early = range(1, count + 1) if is_live else (count,)
            for known in early:
                name, message = make_tool_start(known, early=True)
                if is_live:
                    del message.tool_start.calls[:-1]
                yield name, message
            yield make_tool_start(count, early=False)
            for n in reversed(range(count)) if is_live else range(count):
                yield make_event("tool_result", call_id=f"call_{n}", output="x")
            yield make_event("tools_complete")
        if is_live:
            yield make_event("context_usage")
    yield make_event("end", agent="crab")


def summarise_stream(stream: list[Named]) -> dict[str, list[str]]:
    """What a consumer gets from it, by event kind."""
    received: dict[str, list[str]] = {"chunk": [""], "thinking": [""]}
    for name, message in stream:
        if name in ("chunk", "thinking"):
            received[name][0] += getattr(message, name).content
        elif name == "tool_start":
            kind = "early" if message.tool_start.early else name
            received.setdefault(kind, []).extend(call.id for call in message.tool_start.calls)
        elif name == "tool_result":
            received.setdefault(name, []).append(message.tool_result.call_id)
        elif name != "context_usage":  # not in the log
            received.setdefault(name, []).append("")
    return {kind: sorted(values) for kind, values in received.items()}


def filter_stream(progress: StreamProgress, stream: list[Named]) -> list[Named]:
    filtered = ((name, progress.filter_event(name, message)) for name, message in stream)
    return [(name, message) for name, message in filtered if message is not None]


@pytest.mark.req("client.retry.stream")
@given(STEPS, st.lists(st.integers(0, 60), max_size=3), st.booleans())
def test_a_consumer_gets_the_same_however_often_the_stream_restarts(
    steps: list[tuple[list[str], list[str], int]], cuts: list[int], is_reconnected: bool
) -> None:
    live, stored = list(make_stream(steps, is_live=True)), list(make_stream(steps, is_live=False))
    progress = StreamProgress()
    received: list[Named] = []
    for number, cut in enumerate(cuts):
        stream = live if number == 0 else stored
        received += filter_stream(progress, stream[: min(cut, len(stream) - 1)])
        if is_reconnected:
            progress.resume()
    received += filter_stream(progress, stored if cuts else live)
    assert summarise_stream(received) == summarise_stream(live)


@pytest.mark.req("client.retry.stream")
@given(STEPS, st.integers(0, 60))
def test_a_stream_that_continues_is_delivered_unchanged(
    steps: list[tuple[list[str], list[str], int]], cut: int
) -> None:
    live = list(make_stream(steps, is_live=True))
    progress = StreamProgress()
    received = filter_stream(progress, live[:cut])
    if progress.has_started:
        progress.resume()
    received += filter_stream(progress, live[cut:])
    assert received == live
