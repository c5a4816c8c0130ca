"""docs/protocol.md agrees with the code: every table is compared with its source.

A check takes the page's text and returns the errors in it, so that other tests can show that the
checks notice an outdated page.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, text_format

from crabtalk import protocol
from crabtalk.daemon.events.feed import FeedLimits
from crabtalk.daemon.events.run_queue import EventLimits
from crabtalk.daemon.handlers.daemon_server import DaemonServer
from crabtalk.hooks import DelegateLimits
from crabtalk.protocol import (
    MAX_FRAME,
    PROTOCOL_VERSION,
    ROUTES,
    FrameDecoder,
    FrameError,
    RequestError,
    Server,
    encode_frame,
    wire,
)
from crabtalk.runtime import RuntimeLimits as RuntimeLimits
from crabtalk.transport import TransportLimits
from crabtalk.transport.connection import MAX_HELLO_FRAME, MAX_PIPELINED_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")

FIELDS = ("Message", "Field", "#", "Type", "Meaning")
REQUESTS = ("#", "Request", "Payload", "Reply", "Shape")
MEANINGS = ("Request", "Meaning", "Codes")
ERRORS = ("Code", "Meaning", "The connection", "What to do")
FRAMES = ("From", "Message", "Frame")
ENUMS = ("Enum", "Values", "Meaning")
REASONS = ("Reason", "`error`", "Meaning")
KINDS = ("Kind", "`content`", "Beside it")
RESERVED = ("Message", "Numbers", "Names")
LIMITS = ("Key", "Default", "What happens there")
FIXED = ("Bound", "Value", "What happens there")

Check = Callable[[str], list[str]]
Header = tuple[str, ...]

FILE = descriptor_pb2.FileDescriptorProto()
wire.DESCRIPTOR.CopyToProto(FILE)


# ── Reading the page ────────────────────────────────────────────────────────────────────────────


def find_row_lines(text: str, header: Header) -> Iterator[int]:
    """The line numbers of the rows of a table with this header."""
    inside = False
    for number, line in enumerate(text.splitlines()):
        if not line.startswith("|"):
            inside = False
        elif split_cells(line) == header:
            inside = True
        elif inside and not line.startswith("|---"):
            yield number


def split_cells(line: str) -> tuple[str, ...]:
    return tuple(
        cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")
    )


def read_rows(text: str, header: Header) -> list[tuple[str, ...]]:
    lines = text.splitlines()
    rows = [split_cells(lines[number]) for number in find_row_lines(text, header)]
    assert all(len(row) == len(header) for row in rows), f"a row of {header} has too many cells"
    return rows


def find_code_spans(text: str) -> list[str]:
    """The texts between backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def find_paragraph(text: str, start: str) -> str:
    """The text from `start` to the next empty line."""
    return text.partition(start)[2].partition("\n\n")[0]


def list_differences(
    what: str, documented: Iterable[Hashable], real: Iterable[Hashable]
) -> list[str]:
    documented, real = Counter(documented), set(real)
    return [
        *(f"{what} {item} is not on the page" for item in real - documented.keys()),
        *(f"{what} {item} does not exist" for item in documented.keys() - real),
        *(f"{what} {item} is there {n} times" for item, n in documented.items() if n > 1),
    ]


# ── Reading the descriptors ─────────────────────────────────────────────────────────────────────


def spell_type(
    message: descriptor_pb2.DescriptorProto, field: descriptor_pb2.FieldDescriptorProto
) -> str:
    """The type as it is written in the proto file."""
    name = field.type_name.rpartition(".")[2]
    for nested in message.nested_type:
        if nested.name == name and nested.options.map_entry:
            key, value = (spell_type(nested, part) for part in nested.field)
            return f"map<{key}, {value}>"
    if not name:
        kind = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)
        name = kind.removeprefix("TYPE_").lower()
    if field.label == descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def list_fields(*, of: Callable[[str], bool]) -> list[tuple[str, str, int, str]]:
    return [
        (message.name, field.name, field.number, spell_type(message, field))
        for message in FILE.message_type
        for field in message.field
        if of(message.name)
    ]


def is_request(field: tuple[str, str, int, str]) -> bool:
    return field[0] == "ClientMessage" and field[1] in ROUTES


# ── The checks ──────────────────────────────────────────────────────────────────────────────────


def check_version(text: str) -> list[str]:
    return list_differences(
        "version",
        re.findall(r"^\*\*Protocol version (\d+)\*\*$", text, re.MULTILINE),
        [str(PROTOCOL_VERSION)],
    )


def check_fields(text: str) -> list[str]:
    """Every message, field, number and type. ClientMessage has the table of requests instead."""
    documented = []
    messages: list[str] = []
    for names, fields, numbers, kind, _ in read_rows(text, FIELDS):
        messages = find_code_spans(names) or messages
        for field, number in zip(find_code_spans(fields), numbers.split(","), strict=True):
            documented += [
                (message, field, int(number), *find_code_spans(kind)) for message in messages
            ]
    empty = [message.name for message in FILE.message_type if not message.field]
    return [
        *list_differences(
            "field", documented, [f for f in list_fields(of=bool) if not is_request(f)]
        ),
        *list_differences(
            "empty message",
            find_code_spans(find_paragraph(text, "Messages without fields:")),
            empty,
        ),
    ]


def check_requests(text: str) -> list[str]:
    documented = [
        (
            int(number),
            *find_code_spans(request),
            *find_code_spans(payload),
            *find_code_spans(reply),
            shape,
        )
        for number, request, payload, reply, shape in read_rows(text, REQUESTS)
    ]
    real = [
        (number, name, kind, ROUTES[name].reply, ROUTES[name].shape.value)
        for field in list_fields(of=lambda name: name == "ClientMessage")
        if is_request(field)
        for _, name, number, kind in [field]
    ]
    return list_differences("request", documented, real)


def check_meanings(text: str) -> list[str]:
    """Each request is explained, with codes that exist."""
    explained = read_rows(text, MEANINGS)
    codes = {int(code) for *_, cell in explained for code in re.findall(r"\b\d{3}\b", cell)}
    return [
        *list_differences(
            "explanation", (find_code_spans(name)[0] for name, *_ in explained), ROUTES
        ),
        *(f"{name} is not explained" for name, meaning, _ in explained if not meaning),
        *(f"code {code} does not exist" for code in codes - list_codes()),
    ]


def check_errors(text: str) -> list[str]:
    return list_differences(
        "code", (int(code) for code, *_ in read_rows(text, ERRORS)), list_codes()
    )


def list_codes() -> set[int]:
    return {
        value.code
        for value in vars(protocol).values()
        if isinstance(value, type) and issubclass(value, RequestError)
    }


def check_enums(text: str) -> list[str]:
    documented = [
        (*find_code_spans(enum), name, int(number))
        for enum, values, _ in read_rows(text, ENUMS)
        for name, number in re.findall(r"`(\w+)` = (\d+)", values)
    ]
    real = [(e.name, value.name, value.number) for e in FILE.enum_type for value in e.value]
    return [
        *list_differences("enum value", documented, real),
        *list_differences("stop reason", list_first_column(text, REASONS), wire.StopReason.keys()),
        *list_differences("event kind", list_first_column(text, KINDS), wire.AgentEventKind.keys()),
    ]


def list_first_column(text: str, header: Header) -> list[str]:
    """The names in the first column."""
    return [name for row in read_rows(text, header) for name in find_code_spans(row[0])]


def check_reserved(text: str) -> list[str]:
    documented = [
        (*find_code_spans(message), what)
        for message, numbers, names in read_rows(text, RESERVED)
        for what in [*numbers.split(", "), *find_code_spans(names)]
    ]
    real: list[tuple[str, str]] = []
    for message in FILE.message_type:
        for reserved in message.reserved_range:
            real += [(message.name, str(n)) for n in range(reserved.start, reserved.end)]
        real += [(message.name, name) for name in message.reserved_name]
    return list_differences("reserved", documented, real)


def check_limits(text: str) -> list[str]:
    documented = [
        (*find_code_spans(key), float(value)) for key, value, _ in read_rows(text, LIMITS)
    ]
    bounds = (TransportLimits(), RuntimeLimits(), FeedLimits(), DelegateLimits(), EventLimits())
    real = [
        (key, float(value)) for bound in bounds for key, value in dataclasses.asdict(bound).items()
    ]
    fixed = [int(value) for _, value, _ in read_rows(text, FIXED)]
    in_prose = {
        int(n.replace(" ", "")) for n in re.findall(r"(\d[\d ]*) bytes \(\d+ [KM]iB\)", text)
    }
    return [
        *list_differences("limit", documented, real),
        *list_differences("bound", fixed, [MAX_FRAME, MAX_HELLO_FRAME, MAX_PIPELINED_BYTES]),
        *list_differences("size", in_prose, [MAX_FRAME, MAX_HELLO_FRAME]),
    ]


def check_frames(text: str) -> list[str]:
    """Example frames are valid and match their messages; there are no frames elsewhere."""
    examples = read_rows(text, FRAMES)
    problems = [] if examples else ["no frame is shown"]
    for sender, message, frame in examples:
        envelope = wire.ClientMessage() if sender == "client" else wire.ServerMessage()
        data = bytes.fromhex(*find_code_spans(frame))
        decoder = FrameDecoder()
        try:
            payloads = [bytes(payload) for payload in decoder.feed(data)]
            decoder.feed_eof()
            expected = text_format.Parse(find_code_spans(message)[0], envelope)
        except (FrameError, text_format.ParseError) as error:
            problems.append(f"{frame}: {error}")
            continue
        if payloads != [expected.SerializeToString()] or encode_frame(expected) != data:
            problems.append(f"{frame} is not {message}")
    frames = [
        span
        for span in find_code_spans(text)
        if re.fullmatch(r"([0-9a-f]{2} ){3,}[0-9a-f]{2}", span)
    ]
    return problems + list_differences(
        "frame", frames, (find_code_spans(frame)[0] for *_, frame in examples)
    )


def check_traces(text: str) -> list[str]:
    """Example exchanges consist of messages that exist."""
    lines = re.findall(r"^([→←]) (.*)$", text, re.MULTILINE)
    problems = [] if lines else ["no exchange is shown"]
    for arrow, message in lines:
        envelope = wire.ClientMessage() if arrow == "→" else wire.ServerMessage()
        try:
            text_format.Parse(message, envelope)
        except text_format.ParseError as error:
            problems.append(f"{message}: {error}")
    return problems


def check_mentions(text: str) -> list[str]:
    """Whatever looks like a message, a field or an enum value exists."""
    types = {*wire.DESCRIPTOR.message_types_by_name, *wire.DESCRIPTOR.enum_types_by_name}
    fields = {f"{message}.{field}" for message, field, *_ in list_fields(of=lambda _: True)}
    values = {value.name for enum in FILE.enum_type for value in enum.value}
    patterns = {
        r"([A-Z][a-z]+){2,}": types,
        r"([A-Z][a-z]+){2,}\.\w+": fields,
        r"[A-Z]+(_[A-Z]+)+": values,
    }
    return [
        f"{span} does not exist"
        for span in find_code_spans(text)
        for pattern, real in patterns.items()
        if re.fullmatch(pattern, span) and span not in real
    ]


def check_status(text: str) -> list[str]:
    """The note about unimplemented requests, as long as there is one."""
    if "### Status" not in text:
        return []
    listed = find_code_spans(find_paragraph(text, "> Answered so far:"))
    own = [name for name in ROUTES if getattr(DaemonServer, name) is not getattr(Server, name)]
    return list_differences("answered request", listed, {*own, "ping", "get_config"})


def check_links(text: str) -> list[str]:
    """Links within the page have a target."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}
    return [
        f"#{link} leads nowhere"
        for link in re.findall(r"\(#([^)]*)\)", text)
        if link not in anchors
    ]


CHECKS: list[Check] = [
    check_version,
    check_fields,
    check_requests,
    check_meanings,
    check_errors,
    check_enums,
    check_reserved,
    check_limits,
    check_frames,
    check_traces,
    check_mentions,
    check_status,
    check_links,
]


@pytest.mark.parametrize("check", CHECKS)
def test_the_page_agrees_with_the_code(check: Check) -> None:
    assert check(PAGE) == []


# ── The checks notice errors ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("header", "check"),
    [
        (FIELDS, check_fields),
        (REQUESTS, check_requests),
        (MEANINGS, check_meanings),
        (ERRORS, check_errors),
        (ENUMS, check_enums),
        (REASONS, check_enums),
        (KINDS, check_enums),
        (RESERVED, check_reserved),
        (LIMITS, check_limits),
        (FIXED, check_limits),
    ],
)
def test_a_missing_or_repeated_row_is_noticed(header: Header, check: Check) -> None:
    lines = PAGE.splitlines()
    numbers = list(find_row_lines(PAGE, header))
    assert numbers
    for number in numbers[:: 1 + len(numbers) // 20]:  # about every tenth row of the longest table
        without = [*lines[:number], *lines[number + 1 :]]
        assert check("\n".join(without)), f"unnoticed without {lines[number]}"
        twice = [*lines[:number], lines[number], *lines[number:]]
        assert check("\n".join(twice)), f"unnoticed with a second {lines[number]}"


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        (check_version, "**Protocol version 1**", "**Protocol version 2**"),
        (check_fields, "| `detach` | 101 |", "| `detach` | 102 |"),
        (check_fields, "| `score` | 5 | `double` |", "| `score` | 5 | `float` |"),
        (check_fields, "| `early` | 101 | `optional bool` |", "| `early` | 101 | `bool` |"),
        (check_fields, "| `code` | 1 |", "| `kode` | 1 |"),
        (check_fields, "`Ping`, `Pong`, ", "`Ping`, "),
        (check_fields, "`Ping`, `Pong`, ", "`Ping`, `Pang`, `Pong`, "),
        (
            check_requests,
            "| 5 | `kill` | `KillMsg` | `pong` |",
            "| 5 | `kill` | `KillMsg` | `stats` |",
        ),
        (check_requests, "| `mcp_event` | feed |", "| `mcp_event` | stream |"),
        (check_requests, "| 100 | `extension` | `bytes` |", "| 99 | `extension` | `bytes` |"),
        (check_meanings, "| 410 always |", "| 418 always |"),
        (check_errors, "| 501 |", "| 502 |"),
        (check_enums, "`STOP_REASON_ERROR` = 5", "`STOP_REASON_ERROR` = 6"),
        (check_enums, "`THINKING_END` = 9", "`THINKING_END` = 9, `NAPPING` = 10"),
        (check_reserved, "| `AgentInfo` | 7, 10 |", "| `AgentInfo` | 7 |"),
        (check_limits, "| `pipelined` | 64 |", "| `pipelined` | 65 |"),
        (check_limits, "| 4096 | 401", "| 8192 | 401"),
        (check_limits, "16 777 216 bytes", "16 777 217 bytes"),
        (check_frames, "`00 00 00 03 f2 01 00`", "`00 00 00 03 f2 01 01`"),
        (check_frames, "`00 00 00 03 f2 01 00`", "`00 00 00 04 f2 01 00`"),
        (check_frames, "`00 00 00 02 12 00`", "`00 00 00 02 1a 00`"),
        (check_frames, "| `pong {}` |", "| `pang {}` |"),
        (check_frames, "Both directions are", "`00 00 00 03 f2 01 00` Both directions are"),
        (check_traces, "← stream { tools_complete {} }", "← stream { tools_done {} }"),
        (check_mentions, "`ToolCallInfo.id`", "`ToolCallInfo.call`"),
        (check_mentions, "`ToolCallInfo.id`", "`ToolCallMsg`"),
        (check_mentions, "ends with `STOP_REASON_CANCELLED`", "ends with `STOP_REASON_KILLED`"),
        (check_links, "(#5-errors)", "(#5-failures)"),
    ],
)
def test_an_outdated_page_is_noticed(check: Check, old: str, new: str) -> None:
    assert old in PAGE
    assert check(PAGE.replace(old, new))


def test_an_outdated_status_note_is_noticed_and_a_page_without_one_is_fine() -> None:
    note = "### Status\n\n> Answered so far: `ping`.\n\n"
    assert check_status(note)
    assert check_status("") == []
