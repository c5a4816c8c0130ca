"""docs/session-stream.md is up to date: every field, event, tool and limit."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from crabtalk_web.adapter import background_runs, pending_events, questions, text_segment, tool_text
from crabtalk_web.adapter.envelope_adapter import turn_outcome
from crabtalk_web.adapter.run_events import EndReason, RunEnded
from crabtalk_web.stream import (
    EVENTS,
    MAX_ENVELOPE_BYTES,
    Envelope,
    EnvelopeError,
    EnvelopeUsage,
    TurnStatus,
    check_envelope,
)
from crabtalk_web.stream.envelope_events import ADDED_KEYS

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "session-stream.md").read_text(encoding="utf-8")
ID = "c" * 24


def read_table(first: str) -> list[list[str]]:
    """The cells of the table with this header."""
    body = PAGE.partition(f"\n| {first} |")[2].partition("\n\n")[0]
    lines = body.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


def list_code_spans(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


@pytest.mark.req("stream.page")
def test_every_field_of_an_envelope_is_on_the_page() -> None:
    found = {list_code_spans(row[0])[0]: row for row in read_table("Field")}
    assert list(found) == list(Envelope.__struct_fields__)
    assert set(list_code_spans(found["usage"][2])) == {*EnvelopeUsage.__struct_fields__}
    optional = {name for name, row in found.items() if "may be absent" in row[1]}
    required = msgspec.json.schema(Envelope)["$defs"]["Envelope"]["required"]
    assert optional == set(found) - set(required)


@pytest.mark.req("stream.page")
def test_every_event_is_on_the_page_with_its_fields_and_role() -> None:
    found = {list_code_spans(row[0])[0]: row for row in read_table("`t`")}
    assert list(found) == list(EVENTS)
    for tag, row in found.items():
        fields = msgspec.structs.fields(EVENTS[tag])
        assert list_code_spans(row[1]) == [
            f.encode_name + ("" if f.required else "?") for f in fields
        ]
        assert row[2] == ("user, agent" if may_be_from_user(tag) else "agent")
    added = {key for keys in ADDED_KEYS.values() for key in keys}
    assert added == set(
        list_code_spans(PAGE.partition("it reads the\nrest")[0].rpartition("\n\n")[2])
    )
    assert list_code_spans(found["turn-end"][3]) == list(get_args(TurnStatus))


def may_be_from_user(tag: str) -> bool:
    defaults: dict[str, Any] = {"size": 1, "args": {}, "status": "failed"}
    event = EVENTS[tag]
    parts = {f.name: defaults.get(f.name, "x") for f in msgspec.structs.fields(event) if f.required}
    try:
        check_envelope(Envelope(id=ID, time=1, role="user", ev=event(**parts)))  # type: ignore[arg-type]
    except EnvelopeError:
        return False
    return True


@pytest.mark.req("stream.page")
def test_every_turn_status_is_on_the_page() -> None:
    ends = [
        RunEnded(EndReason.COMPLETED),
        RunEnded(EndReason.CANCELLED),
        RunEnded(EndReason.ERROR, "x"),
        RunEnded(EndReason.MAX_ITERATIONS),
        RunEnded(EndReason.NO_ACTION),
    ]
    assert {end.reason for end in ends} == set(EndReason) - {EndReason.UNKNOWN}
    for row, end in zip(read_table("The run stopped because"), ends, strict=True):
        status, service = turn_outcome(end, is_killed=False)
        assert list_code_spans(row[2]) == [status]
        assert bool(row[1]) == bool(service)


@pytest.mark.req("stream.page")
def test_every_tool_is_on_the_page_as_it_is_shown() -> None:
    found = read_table("Tool")
    names = [list_code_spans(row[0])[0] for row in found]
    assert set(tool_text.PHRASES) <= set(names)
    for row, name in zip(found, names, strict=True):
        key = tool_text.PHRASES.get(name, ("", ""))[1]
        args = {key: key} if key else {}
        shown = [tool_text.format_tool_name(name), tool_text.format_compat_name(name)]
        assert [list_code_spans(row[1])[0], list_code_spans(row[2])[0]] == shown
        assert row[3] == tool_text.build_title(name, args)


BOUNDS = [
    ("An envelope", [MAX_ENVELOPE_BYTES]),
    ("A piece of text", [text_segment.HARD_LIMIT, text_segment.SOFT_LIMIT]),
    ("`result`", [tool_text.MAX_RESULT]),
    ("`args`", [tool_text.MAX_ARGUMENTS]),
    ("`args` of an approval", [questions.MAX_FORM_BYTES]),
    ("`title`", [tool_text.MAX_TITLE]),
    ("`description`", [tool_text.MAX_DESCRIPTION]),
    ("`name` of a tool", [tool_text.MAX_NAME]),
    ("Happenings that wait", [pending_events.MAX_EVENTS, pending_events.MAX_CHARACTERS]),
    ("Tasks in the background that are remembered", [background_runs.MAX_RUNS]),
]


@pytest.mark.req("stream.page")
def test_every_limit_is_on_the_page_with_its_value() -> None:
    found = [
        (row[0], [int(n.replace(" ", "")) for n in re.findall(r"\d[\d ]*\d|\d", row[1])])
        for row in read_table("What")
    ]
    assert found == BOUNDS


@pytest.mark.req("stream.page")
def test_the_program_on_the_page_does_what_it_says() -> None:
    program = PAGE.partition("```python\n")[2].partition("```")[0]
    exec(compile(program, "session-stream.md", "exec"), {})  # noqa: S102


@pytest.mark.req("stream.page")
def test_the_lines_on_the_page_are_envelopes() -> None:
    block = PAGE.partition("```text\n")[2].partition("```")[0]
    lines = [line for line in block.splitlines() if line.startswith("{")]
    for line in lines:
        value = json.loads(line)
        for key in ("id", "turn"):
            if key in value:
                value[key] = value[key].rstrip("…").ljust(24, "0")
        check_envelope(msgspec.convert(value, Envelope))
    assert len(lines) == 6
