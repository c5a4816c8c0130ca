"""docs/session-stream.md says what is so: every field, event, tool and bound."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from crabtalk_web.adapter import asks, background, segment, waiting, words
from crabtalk_web.adapter.adapter import outcome
from crabtalk_web.adapter.happenings import Ended, Reason
from crabtalk_web.stream import EVENTS, LARGEST, Envelope, EnvelopeError, Status, Usage, check
from crabtalk_web.stream.events import ADDED

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "session-stream.md").read_text(encoding="utf-8")
ID = "c" * 24


def rows(first: str) -> list[list[str]]:
    """The cells of the table whose head begins so."""
    body = PAGE.partition(f"\n| {first} |")[2].partition("\n\n")[0]
    lines = body.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


def code(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


@pytest.mark.req("stream.page")
def test_every_field_of_an_envelope_is_on_the_page() -> None:
    found = {code(row[0])[0]: row for row in rows("Field")}
    assert list(found) == list(Envelope.__struct_fields__)
    assert set(code(found["usage"][2])) == {*Usage.__struct_fields__}
    optional = {name for name, row in found.items() if "may be absent" in row[1]}
    required = msgspec.json.schema(Envelope)["$defs"]["Envelope"]["required"]
    assert optional == set(found) - set(required)


@pytest.mark.req("stream.page")
def test_every_event_is_on_the_page_with_its_fields_and_who_may_say_it() -> None:
    found = {code(row[0])[0]: row for row in rows("`t`")}
    assert list(found) == list(EVENTS)
    for tag, row in found.items():
        fields = msgspec.structs.fields(EVENTS[tag])
        assert code(row[1]) == [f.encode_name + ("" if f.required else "?") for f in fields]
        assert row[2] == ("user, agent" if may_be_a_users(tag) else "agent")
    added = {key for keys in ADDED.values() for key in keys}
    assert added == set(code(PAGE.partition("it reads the\nrest")[0].rpartition("\n\n")[2]))
    assert code(found["turn-end"][3]) == list(get_args(Status))


def may_be_a_users(tag: str) -> bool:
    given: dict[str, Any] = {"size": 1, "args": {}, "status": "failed"}
    event = EVENTS[tag]
    parts = {f.name: given.get(f.name, "x") for f in msgspec.structs.fields(event) if f.required}
    try:
        check(Envelope(id=ID, time=1, role="user", ev=event(**parts)))  # type: ignore[arg-type]
    except EnvelopeError:
        return False
    return True


@pytest.mark.req("stream.page")
def test_every_end_is_on_the_page_as_it_is() -> None:
    ends = [
        Ended(Reason.COMPLETED),
        Ended(Reason.CANCELLED),
        Ended(Reason.ERROR, "x"),
        Ended(Reason.MAX_ITERATIONS),
        Ended(Reason.NO_ACTION),
    ]
    assert {end.reason for end in ends} == set(Reason) - {Reason.UNKNOWN}
    for row, end in zip(rows("The run stopped because"), ends, strict=True):
        status, service = outcome(end, is_killed=False)
        assert code(row[2]) == [status]
        assert bool(row[1]) == bool(service)


@pytest.mark.req("stream.page")
def test_every_tool_is_on_the_page_as_it_is_shown() -> None:
    found = rows("Tool")
    names = [code(row[0])[0] for row in found]
    assert set(words.PHRASES) <= set(names)
    for row, name in zip(found, names, strict=True):
        key = words.PHRASES.get(name, ("", ""))[1]
        args = {key: key} if key else {}
        shown = [words.tool_name(name), words.compat_name(name)]
        assert [code(row[1])[0], code(row[2])[0]] == shown
        assert row[3] == words.title(name, args)


BOUNDS = [
    ("An envelope", [LARGEST]),
    ("A piece of text", [segment.MOST, segment.ENOUGH]),
    ("`result`", [words.RESULT]),
    ("`args`", [words.ARGUMENTS]),
    ("`args` of an approval", [asks.MOST_BYTES]),
    ("`title`", [words.TITLE]),
    ("`description`", [words.DESCRIPTION]),
    ("`name` of a tool", [words.NAME]),
    ("Happenings that wait", [waiting.MOST_HAPPENINGS, waiting.MOST_CHARACTERS]),
    ("Tasks in the background that are remembered", [background.MOST]),
]


@pytest.mark.req("stream.page")
def test_every_bound_is_on_the_page_with_its_number() -> None:
    found = [
        (row[0], [int(n.replace(" ", "")) for n in re.findall(r"\d[\d ]*\d|\d", row[1])])
        for row in rows("What")
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
        check(msgspec.convert(value, Envelope))
    assert len(lines) == 6
