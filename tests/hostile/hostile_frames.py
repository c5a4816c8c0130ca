"""Hostile requests by an attacker who knows the protocol, generated from a seed.

A request is filled according to its descriptor with values that often cause bugs, and encoded.
Half of them are then damaged in the structure of protobuf: swapped types, wrong lengths, invalid
text, numbers that are too long, endless groups. `find_expected_shape` says what the answer must be.
"""

import json
import random
from collections.abc import Sequence
from typing import Any, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from crabtalk.protocol import ROUTES, ReplyShape, wire

VARINT, FIXED64, DELIMITED, START_GROUP, END_GROUP, FIXED32 = range(6)
# Requests that cause work, such as a turn or a file. They are generated less often.
COSTLY_REQUESTS = (
    *("send", "stream", "compact", "create_agent", "update_agent", "rename_agent", "delete_agent"),
    *("upsert_mcp", "delete_mcp", "reload", "publish_event", "subscribe_event", "set_title"),
    *("unsubscribe_event", "replace_memory", "set_active_model", "delete_conversation"),
    *("list_conversations", "search_sessions", "list_models", "list_skills"),
)
CHEAP_REQUESTS = tuple(name for name in ROUTES if name not in COSTLY_REQUESTS)
COSTLY_SHARE = 0.06
# Fields in which most values lead to a refusal.
RARELY_SET_FIELDS = ("cwd", "guest", "tool_choice", "ask_id", "since", "until")

# Paths to files around a daemon's home in the tests, relative to its files.
PATHS = (
    *(
        "../secret/key",
        "../../secret/key",
        "../../../secret/key",
        "..",
        ".",
        "/",
        "//",
        "~",
        "~/key",
    ),
    *("/etc/passwd", "..\\..\\secret\\key", "%2e%2e%2fsecret", "..%2fsecret%2fkey", "....//secret"),
    *(
        "key\0.toml",
        "secret/../../secret/key",
        "\uff0e\uff0e/secret",
        "crab/../crab",
        "file:///etc",
    ),
    *("CON", "crab.toml", "crab.toml/", "-rf", "$(id)", "`id`", "${HOME}", "a" * 255, "\u202ebarc"),
)
WORDS = (
    *(
        "",
        " ",
        "\0",
        "\x7f",
        "\n",
        "crab",
        "owl",
        "hello",
        "héllo",
        "ＡＢ",
        "😀" * 3,
        "\ud7ff",
        "\ufeff",
    ),
    *(
        "e\u0301" * 9,
        "\u200b",
        "'; DROP TABLE agents; --",
        "<from agent='boss'>",
        "${OPENAI_API_KEY}",
    ),
    *(
        "%s%n%x",
        "{0.__class__}",
        "null",
        "NaN",
        "-1",
        "1e999",
        "\x1b]0;x\x07",
        "\r\n\r\nGET / HTTP/1.1",
    ),
    *("tg:1", "event:x", "user", "a:b", "A B", "(" * 60, "[" * 60, '"' * 9, "x" * 1025, "é" * 3000),
)
AGENTS = ("crab", "owl", "twin", "crab ", "Crab", "kelp", "sand", "reef", "wor ker", "worker", "人")
NUMBERS = (0, 1, 2, 99, 100, 127, 128, 500, 2**31 - 1, 2**31, 2**32 - 1)
LARGE = (*NUMBERS, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
SETTINGS: tuple[Any, ...] = (
    *({}, [], None, 1, "x", {"prompt": "p"}, {"prompt": 1}, {"mcps": {}}, {"mcps": [1]}),
    *({"hooks": {"bash": 1}}, {"hooks": {"files": {"roots": ["../.."]}}}, {"hooks": []}),
    *({"max_iterations": -1}, {"max_iterations": 10**30}, {"tool_choice": {"a": 1}}),
    *({"tools": ["../x"]}, {"skills": ["../../secret"]}, {"model": "\0"}, {"thinking": "yes"}),
    *({"name": "x"}, {"name": "../x", "command": ""}, {"name": "x", "url": "file:///etc/passwd"}),
    *({"name": "x", "url": "http://[::1"}, {"name": "x", "args": "y"}, {"name": "", "env": []}),
    *(
        {"name": "x", "env": {"A=B": "c"}},
        {"name": "x", "auth": "a\r\nb"},
        {"description": "\ud800"},
    ),
)
TEXTS = (
    "{",
    '{"a":' * 500,
    "[" * 5000,
    '{"a": NaN}',
    '{"max_iterations": 1e400}',
    "\ufeff{}",
    "{}{}",
)


class HostileFrameMaker:
    """Generates the frames of one seed, always in the same order."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def make_frame(self) -> bytes:
        rng = self._rng
        names = COSTLY_REQUESTS if rng.random() < COSTLY_SHARE else CHEAP_REQUESTS
        data = self._make_request(rng.choice(names)).SerializeToString()
        return self._damage(data) if rng.random() < 0.5 else data

    # ── Filling ─────────────────────────────────────────────────────────────────────────────

    def _make_request(self, name: str) -> wire.ClientMessage:
        message = wire.ClientMessage()
        field = wire.ClientMessage.DESCRIPTOR.fields_by_name[name]
        if field.type == FieldDescriptor.TYPE_BYTES:
            setattr(message, name, self._rng.randbytes(self._rng.randrange(40)))
            return message
        inner = getattr(message, name)
        inner.SetInParent()
        self._fill(inner)
        return message

    def _fill(self, message: Message) -> None:
        rng = self._rng
        for field in cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields):
            if rng.random() < (0.75 if field.name in RARELY_SET_FIELDS else 0.15):
                continue
            if field.is_repeated:
                for _ in range(rng.choice((0, 1, 3, 20))):
                    self._add_value(getattr(message, field.name), field)
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                self._fill(getattr(message, field.name))
            else:
                setattr(message, field.name, self._make_value(field))

    def _add_value(self, values: Any, field: FieldDescriptor) -> None:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            self._fill(values.add())
        else:
            values.append(self._make_value(field))

    def _make_value(self, field: FieldDescriptor) -> Any:
        rng = self._rng
        match field.type:
            case FieldDescriptor.TYPE_STRING:
                return self._make_text(field.name).encode(errors="replace").decode()
            case FieldDescriptor.TYPE_BOOL:
                return rng.random() < 0.5
            case FieldDescriptor.TYPE_UINT32:
                return rng.choice(NUMBERS)
            case FieldDescriptor.TYPE_UINT64:
                return rng.choice(LARGE)
        raise AssertionError(f"{field.full_name} is new: add values for its type here")

    def _make_text(self, name: str) -> str:
        rng = self._rng
        is_odd = rng.random() < 0.3
        if name == "config":
            return rng.choice(TEXTS) if is_odd else json.dumps(rng.choice(SETTINGS))
        if (
            name in ("agent", "name", "target_agent", "old_name", "new_name", "guest")
            and not is_odd
        ):
            return rng.choice(AGENTS)
        if name == "kind" and not is_odd:
            return rng.choice(("note", "archive", "topic"))
        return rng.choice(PATHS) if rng.random() < 0.4 else rng.choice(WORDS)

    # ── Damaging ────────────────────────────────────────────────────────────────────────────

    def _damage(self, data: bytes) -> bytes:
        rng = self._rng
        if rng.random() < 0.4:
            return self._damage_bytes(data)
        fields = split_fields(data)
        if not fields:
            return data + self._make_field(rng.choice((0, 1, 30, 100, 101, 536_870_911)))
        number, kind, value = fields[0]
        if kind == DELIMITED and rng.random() < 0.8:  # within the request
            inner = split_fields(value) or []
            value = b"".join(map(encode_field, self._damage_fields(inner)))
            return encode_field((number, kind, value)) + b"".join(map(encode_field, fields[1:]))
        return b"".join(map(encode_field, self._damage_fields(fields)))

    def _damage_fields(self, fields: list["RawField"]) -> list["RawField"]:
        rng = self._rng
        fields = list(fields) or [(1, VARINT, b"\x01")]
        at = rng.randrange(len(fields))
        number, kind, value = fields[at]
        match rng.randrange(9):
            case 0:
                fields[at] = (number, rng.randrange(8), value)
            case 1:
                fields[at] = (number, DELIMITED, b"\xff\xfe" + value)
            case 2:
                fields.insert(at, (number, kind, rng.choice(WORDS).encode(errors="replace")))
            case 3:
                fields[at] = (rng.choice((0, 2, 8, 99, 19_000, 2**29 - 1)), kind, value)
            case 4:
                fields += fields * rng.choice((1, 30))
            case 5:
                fields[at] = (number, VARINT, b"\xff" * rng.choice((4, 9, 10, 11)) + b"\x01")
            case 6:
                fields[at] = (number, START_GROUP, b"")
            case 7:
                fields.append((rng.randrange(1, 200), DELIMITED, rng.randbytes(rng.randrange(30))))
            case 8:
                del fields[at]
        return fields

    def _damage_bytes(self, data: bytes) -> bytes:
        """Damage bytes without regard to the structure."""
        rng = self._rng
        match rng.randrange(6):
            case 0:
                return data[: rng.randrange(len(data) + 1)]
            case 1:
                changed = bytearray(data or b"\0")
                for _ in range(rng.randrange(1, 4)):
                    changed[rng.randrange(len(changed))] = rng.randrange(256)
                return bytes(changed)
            case 2:
                return data + rng.randbytes(rng.randrange(1, 20))
            case 3:
                return data + self._make_request(rng.choice(CHEAP_REQUESTS)).SerializeToString()
            case 4:
                return b"\x0b" * rng.choice((1, 99, 101, 5000))  # groups within groups
        at = rng.randrange(len(data) + 1)
        return data[:at] + data[at // 2 :]

    def _make_field(self, number: int) -> bytes:
        return encode_field((number, self._rng.randrange(6), self._rng.randbytes(4)))


RawField = tuple[int, int, bytes]  # number, type, and everything after the tag except a length


def find_expected_shape(data: bytes) -> ReplyShape | None:
    """The shape of the answer; None if it must be refused with 400."""
    try:
        name = wire.ClientMessage.FromString(data).WhichOneof("msg")
    except DecodeError:
        return None
    return ROUTES[name].shape if name is not None else None


def split_fields(data: bytes) -> list[RawField] | None:
    """The fields of a message; None if it is malformed."""
    fields: list[RawField] = []
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        start, kind = at, tag & 7
        if kind == VARINT:
            _, at = read_varint(data, at)
            value = data[start:at]
        elif kind == DELIMITED:
            size, start = read_varint(data, at)
            at = start + size
            value = data[start:at]
        elif kind in (FIXED64, FIXED32):
            at += 8 if kind == FIXED64 else 4
            value = data[start:at]
        else:
            return None
        if at > len(data):
            return None
        fields.append((tag >> 3, kind, value))
    return fields


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data):
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return number, at
    return number, len(data) + 1


def encode_field(field: RawField) -> bytes:
    number, kind, value = field
    length = encode_varint(len(value)) if kind == DELIMITED else b""
    return encode_varint(number << 3 | kind) + length + value


def encode_varint(number: int) -> bytes:
    out = bytearray()
    while True:
        low, number = number & 0x7F, number >> 7
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def frame_bytes(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
