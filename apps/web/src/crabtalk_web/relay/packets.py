"""Packets of Engine.IO 4 and Socket.IO 5 over a WebSocket, as far as clients use them.

One namespace, no binary attachments. A packet is a digit for the engine, then, inside its messages,
a digit for the socket, a number if an answer is wanted, and JSON.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

OPEN, CLOSE, PING, PONG, MESSAGE, UPGRADE, NOOP = "0123456"
CONNECT, DISCONNECT, EVENT, ACK, CONNECT_ERROR = "01234"
# Packet numbers with more digits are invalid.
ID_DIGITS = 18

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode


class PacketError(Exception):
    """The packet is unknown, so the rest of the connection cannot be trusted."""


@dataclass(frozen=True, slots=True)
class Packet:
    kind: str
    number: int | None
    data: Any


def parse_packet(text: str) -> Packet:
    """Parse the part after the engine's digit for a message. Raises PacketError."""
    kind, at = text[:1], 1
    if kind not in (CONNECT, DISCONNECT, EVENT, ACK):
        raise PacketError(f"unknown packet {kind!r}")
    if text.startswith("/", at):
        namespace, _, _ = text[at:].partition(",")
        if namespace != "/":
            raise PacketError("there is only the default namespace")
        at += len(namespace) + 1
    end = at
    while end < len(text) and text[end].isascii() and text[end].isdigit():
        end += 1
    if end - at > ID_DIGITS:
        raise PacketError("the number of a packet is too large")
    number = int(text[at:end]) if end > at else None
    try:
        data = decode_json(text[end:]) if end < len(text) else None
    except (msgspec.DecodeError, RecursionError):
        raise PacketError("a packet has no JSON") from None
    return Packet(kind, number, check_packet_data(kind, data))


def check_packet_data(kind: str, data: Any) -> Any:
    if kind == EVENT and not (isinstance(data, list) and data and isinstance(data[0], str)):
        raise PacketError("an event is a list with a name")
    if kind == ACK and not isinstance(data, list):
        raise PacketError("an answer is a list")
    return data


def encode_open(sid: str, ping_interval: float, ping_timeout: float, most: int) -> str:
    opening_data = {
        "sid": sid,
        "upgrades": [],
        "pingInterval": round(ping_interval * 1000),
        "pingTimeout": round(ping_timeout * 1000),
        "maxPayload": most,
    }
    return OPEN + encode_json(opening_data).decode()


def encode_connected(sid: str) -> str:
    return MESSAGE + CONNECT + encode_json({"sid": sid}).decode()


def encode_refused(reason: str) -> str:
    return MESSAGE + CONNECT_ERROR + encode_json({"message": reason}).decode()


def encode_event(name: str, payload: Any, number: int | None = None) -> str:
    wanted = "" if number is None else str(number)
    return MESSAGE + EVENT + wanted + encode_json([name, payload]).decode()


def encode_ack(number: int, result: Any) -> str:
    return MESSAGE + ACK + str(number) + encode_json([result]).decode()
