"""The messages between daemon and host: framing and limits."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.mcp.messages import (
    HEADER,
    LARGEST_FRAME,
    AuthorizationNeeded,
    CallTool,
    CancelCall,
    ClosePeer,
    FromHost,
    HostFrameError,
    McpCallFailure,
    McpCallResult,
    McpImage,
    McpProgress,
    McpTool,
    OpenPeer,
    PeerLost,
    PeerTools,
    ServerSpawned,
    ToHost,
    encode_frame,
    read_frame,
)

text = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(0, 2**63 - 1)
amounts = st.floats(0, allow_infinity=False)
json = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=5,
)
hints = st.none() | st.booleans()
tools = st.builds(
    McpTool, text, text, st.dictionaries(text, json), text, hints, hints, hints, hints
)
messages = st.one_of(
    st.builds(
        OpenPeer,
        numbers,
        st.floats(0, 1e9),
        text,
        st.lists(text).map(tuple),
        st.dictionaries(text, text),
        text,
        text,
        text,
    ),
    st.builds(ClosePeer, numbers),
    st.builds(CallTool, numbers, numbers, text, st.binary(), st.floats(0, 1e9)),
    st.builds(CancelCall, numbers),
    st.builds(ServerSpawned, numbers, numbers),
    st.builds(AuthorizationNeeded, numbers, text),
    st.builds(PeerTools, numbers, st.lists(tools).map(tuple)),
    st.builds(PeerLost, numbers, text, st.booleans()),
    st.builds(McpProgress, numbers, text, st.none() | amounts, st.none() | amounts),
    st.builds(
        McpCallResult,
        numbers,
        text,
        st.lists(st.builds(McpImage, text, st.binary())).map(tuple),
        st.booleans(),
    ),
    st.builds(McpCallFailure, numbers, text, st.booleans()),
)
DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToHost | FromHost)


async def read_frames(*pieces: bytes) -> list[Any]:
    reader = asyncio.StreamReader()
    for piece in pieces:
        reader.feed_data(piece)
    reader.feed_eof()
    found = []
    while (message := await read_frame(reader, DECODER)) is not None:
        found.append(message)
    return found


@given(st.lists(messages, max_size=4), st.integers(1, 50))
def test_messages_round_trip_for_any_split_of_the_bytes(sent: list[Any], size: int) -> None:
    data = b"".join(encode_frame(message) for message in sent)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert asyncio.run(read_frames(*pieces)) == sent


@pytest.mark.req("mcp.results.bounded")
async def test_a_frame_above_the_limit_is_neither_sent_nor_read() -> None:
    with pytest.raises(HostFrameError, match="at most"):
        encode_frame(McpCallResult(1, "x" * (LARGEST_FRAME + 1)))
    with pytest.raises(HostFrameError, match="announced"):
        await read_frames(HEADER.pack(LARGEST_FRAME + 1))


async def test_an_invalid_message_is_refused_and_an_incomplete_one_is_the_end() -> None:
    with pytest.raises(HostFrameError):
        await read_frames(HEADER.pack(3) + b"abc")
    assert await read_frames(encode_frame(CancelCall(1)), encode_frame(CancelCall(2))[:-1]) == [
        CancelCall(1)
    ]
