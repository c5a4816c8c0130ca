"""SseDecoder: event streams of the HTML standard, for any split of the bytes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model.errors import ApiError
from crabtalk.model.sse import MAX_EVENT, SseDecoder


def decode_events(*pieces: bytes) -> list[tuple[str, bytes]]:
    decoder = SseDecoder()
    found = [event for piece in pieces for event in decoder.feed(piece)]
    return found + list(decoder.end())


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [("", b"a")]),
        (b"data:a\n\n", [("", b"a")]),
        (b"data:  a\n\n", [("", b" a")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"data\n\n", [("", b"")]),
        (b"event: x\ndata: a\n\ndata: b\n\n", [("x", b"a"), ("", b"b")]),
        (b"event: x\n\ndata: b\n\n", [("", b"b")]),
        (b": comment\n\n:\n\n", []),
        (b"id: 1\nretry: 2\nunknown: 3\nnonsense\ndata: a\n\n", [("", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("", b"a")]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [("", b"a"), ("", b"b"), ("", b"c")]),
        (b"data: a", [("", b"a")]),
        (b"", []),
    ],
)
def test_streams_are_parsed_as_the_standard_requires(
    stream: bytes, expected: list[tuple[str, bytes]]
) -> None:
    assert decode_events(stream) == expected
    assert decode_events(*(bytes([byte]) for byte in stream)) == expected


LINE = st.sampled_from(
    ["data: ä", "data: 日本", "data:", "event: e", ": c", "id: 1", "", "data: x y"]
)
END = st.sampled_from(["\n", "\r\n", "\r"])


@pytest.mark.req("model.stream.any_split")
@given(st.lists(st.tuples(LINE, END)), st.lists(st.integers(0, 200), max_size=10))
def test_any_split_gives_the_same_events(lines: list[tuple[str, str]], cuts: list[int]) -> None:
    stream = "".join(line + end for line, end in lines).encode()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert decode_events(*pieces) == decode_events(stream)


@given(st.binary())
def test_any_bytes_are_events_or_nothing(data: bytes) -> None:
    for name, content in decode_events(data):
        assert isinstance(name, str)
        assert isinstance(content, bytes)


def test_an_endless_event_is_an_error() -> None:
    decoder = SseDecoder()
    piece = b"data: " + b"x" * (1 << 20)
    with pytest.raises(ApiError, match="without end"):
        for _ in range(MAX_EVENT // len(piece) + 2):
            list(decoder.feed(piece))
