"""Normaliser: rewrites the few values of a ServerMessage that differ from run to run.

It works on bytes and field numbers and knows no message types, so field order, presence, unknown
fields and encodings all count when two frames are compared. A path is the field numbers from the
ServerMessage down to the value, joined by dots.
"""

import struct
from collections.abc import Iterator

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5

# Strings that a daemon generates or takes from a clock. The value becomes "?"; the presence and
# position of the field still count.
REPLACED_FIELDS = {
    "4.1.101": "stream.start.run_id",
    "4.8.101": "stream.ask_user.ask_id",
    "21.5": "agent_event.timestamp",
    "21.101": "agent_event.run_id",
    "21.103.3": "agent_event.parent.run_id",
    "21.105.101": "agent_event.ask.ask_id",
    "24.1.102": "conversation_history.messages.timestamp",
    "30.5": "mcp_event.timestamp",
    "101.2": "welcome.server_version",
    "102.1.4": "session_hits.hits.updated_at",
    "103.1.102": "message_page.messages.timestamp",
    "104.1.3": "archive_list.archives.archived_at",
    "105.1.6": "memory_hits.hits.created_at",
}
# Numbers from a clock. Protobuf omits a zero, so the field is removed.
REMOVED_FIELDS = {
    "4.5.3": "stream.tool_result.duration_ms",
    "5.1.4": "active_conversations.conversations.alive_secs",
    "7.1.7": "conversation_list.conversations.alive_secs",
    "20.1": "stats.uptime_secs",
    "106.1.6": "memory_page.entries.created_at",
}
# Scores. The index computes them in four bytes, and uncommitted messages are scored in eight, so
# the last digits depend on the time of the commit: five decimal places count.
ROUNDED_FIELDS = {
    "102.1.5": "session_hits.hits.score",
    "105.1.5": "memory_hits.hits.score",
}
PARENT_FIELDS = {
    path.rsplit(".", depth)[0]
    for path in (*REPLACED_FIELDS, *REMOVED_FIELDS, *ROUNDED_FIELDS)
    for depth in range(1, path.count(".") + 1)
}


def normalise_payload(payload: bytes, path: str = "") -> bytes:
    """Rewrite the values above in the payload of a frame. Raises ValueError if it is truncated."""
    out = bytearray()
    for number, kind, start, value, end in iterate_fields(payload):
        here = f"{path}.{number}" if path else str(number)
        if here in REMOVED_FIELDS:
            continue
        if kind == LENGTH and here in REPLACED_FIELDS:
            out += encode_tag(number) + b"\x01?"
        elif kind == EIGHT_BYTES and here in ROUNDED_FIELDS:
            (score,) = struct.unpack("<d", payload[value:end])
            out += payload[start:value] + struct.pack("<d", round(score, 5))
        elif kind == LENGTH and here in PARENT_FIELDS:
            inner = normalise_payload(payload[value:end], here)
            out += encode_tag(number) + encode_varint(len(inner)) + inner
        else:
            out += payload[start:end]
    return bytes(out)


def iterate_fields(payload: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Number, wire type, start of the field, start of its value and end of each field."""
    position = 0
    while position < len(payload):
        start = position
        key, position = read_varint(payload, position)
        number, kind = key >> 3, key & 7
        value = position
        match kind:
            case 0:  # VARINT
                _, position = read_varint(payload, position)
            case 1:  # EIGHT_BYTES
                position += 8
            case 2:  # LENGTH
                size, value = read_varint(payload, position)
                position = value + size
            case 5:  # FOUR_BYTES
                position += 4
            case _:
                raise ValueError(f"field {number} has wire type {kind}, which no message uses")
        if position > len(payload):
            raise ValueError(f"field {number} ends after its message")
        yield number, kind, start, value, position


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if position >= len(data):
            raise ValueError("a number ends after its message")
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
        shift += 7


def encode_tag(number: int) -> bytes:
    return encode_varint(number << 3 | LENGTH)


def encode_varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
