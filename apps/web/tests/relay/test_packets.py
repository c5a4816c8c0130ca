"""Packets: valid ones are parsed as they were meant, and no input does harm."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk_web.relay import packets
from crabtalk_web.relay.packets import Packet, PacketError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.req("relay.socket.packets")
@given(name=st.text(min_size=1), payload=VALUES, number=st.none() | st.integers(0, 2**53))
def test_an_event_is_read_back_as_it_was_written(
    name: str, payload: Any, number: int | None
) -> None:
    text = packets.encode_event(name, payload, number)
    assert text.startswith("42")
    assert packets.parse_packet(text[1:]) == Packet("2", number, [name, payload])


@pytest.mark.req("relay.socket.packets")
@given(result=VALUES, number=st.integers(0, 2**53))
def test_an_answer_is_read_back_as_it_was_written(result: Any, number: int) -> None:
    assert packets.parse_packet(packets.encode_ack(number, result)[1:]) == Packet(
        "3", number, [result]
    )


@pytest.mark.req("relay.socket.packets")
@given(st.text() | st.from_regex(r"[0-6](/[a-z]*,)?[0-9]{0,30}.*", fullmatch=True))
def test_any_text_is_a_packet_or_an_error(text: str) -> None:
    try:
        packets.parse_packet(text)
    except PacketError:
        return


@pytest.mark.req("relay.socket.packets")
@pytest.mark.parametrize(
    ("text", "packet"),
    [
        ('0{"token":"t"}', Packet("0", None, {"token": "t"})),
        ("0", Packet("0", None, None)),
        ('2/,12["a"]', Packet("2", 12, ["a"])),
        ('2["a",{}]', Packet("2", None, ["a", {}])),
        ("30[]", Packet("3", 0, [])),
        ("1", Packet("1", None, None)),
    ],
)
def test_packets_of_real_clients_are_parsed(text: str, packet: Packet) -> None:
    assert packets.parse_packet(text) == packet


@pytest.mark.req("relay.socket.packets")
def test_harmful_packets_are_refused() -> None:
    for text in ('2["a"' + "[" * 100_000, "2" + "9" * 10_000 + '["a"]', '51-["a"]', "2{}", "3{}"):
        with pytest.raises(PacketError):
            packets.parse_packet(text)


@pytest.mark.req("relay.socket.wire")
def test_the_first_packet_says_what_the_connection_is() -> None:
    opening = json.loads(packets.encode_open("s", 15, 45, 1000)[1:])
    assert opening == {
        "sid": "s",
        "upgrades": [],
        "pingInterval": 15000,
        "pingTimeout": 45000,
        "maxPayload": 1000,
    }
