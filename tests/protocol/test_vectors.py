"""The frames of the contract's Appendix A, decoded and encoded byte for byte."""

import pytest

from crabtalk.protocol import FrameDecoder, encode_frame, encode_reply, wire

REQUESTS = {
    "00 00 00 03 f2 01 00": wire.ClientMessage(ping=wire.Ping()),
    "00 00 00 10 12 0e 0a 04 63 72 61 62 12 02 68 69 22 02 62 6f": wire.ClientMessage(
        stream=wire.StreamMsg(agent="crab", content="hi", sender="bo")
    ),
    "00 00 00 0c 2a 0a 0a 04 63 72 61 62 12 02 62 6f": wire.ClientMessage(
        kill=wire.KillMsg(agent="crab", sender="bo")
    ),
    "00 00 00 13 e2 02 10 0a 04 63 72 61 62 12 02 62 6f 1a 04 73 74 6f 70": wire.ClientMessage(
        steer_session=wire.SteerSessionMsg(agent="crab", sender="bo", content="stop")
    ),
    "00 00 00 03 a2 03 00": wire.ClientMessage(subscribe_mcp_events=wire.SubscribeMcpEventsMsg()),
    "00 00 00 04 a2 06 01 01": wire.ClientMessage(extension=b"\x01"),
}

REPLIES = {
    "00 00 00 02 12 00": wire.ServerMessage(pong=wire.Pong()),
    "00 00 00 08 0a 06 08 94 03 12 01 78": wire.ServerMessage(
        error=wire.ErrorMsg(code=404, message="x")
    ),
    "00 00 00 0a 22 08 0a 06 0a 04 63 72 61 62": wire.ServerMessage(
        stream=wire.StreamEvent(start=wire.StreamStart(agent="crab"))
    ),
    "00 00 00 08 22 06 12 04 0a 02 79 6f": wire.ServerMessage(
        stream=wire.StreamEvent(chunk=wire.StreamChunk(content="yo"))
    ),
    "00 00 00 10 22 0e 2a 0c 0a 02 63 31 12 02 6f 6b 18 07 20 01": wire.ServerMessage(
        stream=wire.StreamEvent(
            tool_result=wire.ToolResultEvent(
                call_id="c1", output="ok", duration_ms=7, is_error=True
            )
        )
    ),
    "00 00 00 15 22 13 3a 11 0a 04 63 72 61 62 22 01 6d 2a 06 08 09 10 03 18 0c": (
        wire.ServerMessage(
            stream=wire.StreamEvent(
                end=wire.StreamEnd(
                    agent="crab",
                    model="m",
                    usage=wire.TokenUsage(prompt_tokens=9, completion_tokens=3, total_tokens=12),
                )
            )
        )
    ),
}

Envelope = wire.ClientMessage | wire.ServerMessage


def make_test_id(value: object) -> str:
    """A test id: the variant's name, or the event's for a stream."""
    if isinstance(value, wire.ServerMessage):
        return value.stream.WhichOneof("event") or value.WhichOneof("msg") or "empty"
    return (value.WhichOneof("msg") if isinstance(value, wire.ClientMessage) else None) or "bytes"


@pytest.mark.req("wire.frame.layout")
@pytest.mark.req("wire.numbers.contract")
@pytest.mark.parametrize(("text", "message"), (REQUESTS | REPLIES).items(), ids=make_test_id)
def test_a_vector_is_the_frame_of_its_message(text: str, message: Envelope) -> None:
    assert encode_frame(message).hex(" ") == text


@pytest.mark.req("wire.frame.layout")
@pytest.mark.req("wire.numbers.contract")
@pytest.mark.parametrize(("text", "message"), (REQUESTS | REPLIES).items(), ids=make_test_id)
def test_a_vector_is_read_as_its_message_and_written_back(text: str, message: Envelope) -> None:
    decoder = FrameDecoder()
    (payload,) = decoder.feed(bytes.fromhex(text))
    decoder.feed_eof()
    read = type(message).FromString(bytes(payload))
    assert read == message
    assert encode_frame(read).hex(" ") == text


@pytest.mark.parametrize(("text", "message"), REPLIES.items(), ids=make_test_id)
def test_a_reply_without_its_envelope_gives_the_same_vector(
    text: str, message: wire.ServerMessage
) -> None:
    field = message.WhichOneof("msg")
    assert field is not None
    assert encode_reply(field, getattr(message, field)).hex(" ") == text


@pytest.mark.req("wire.numbers.contract")
def test_all_vectors_of_the_contract_are_here() -> None:
    """Two equal vectors would be a single dict entry."""
    assert (len(REQUESTS), len(REPLIES)) == (6, 6)
