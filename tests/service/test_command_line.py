"""What programs share at a terminal: cheap to import, and nothing printed steers a terminal."""

import subprocess
import sys

import pytest

from crabtalk.service.command_line import (
    escape_controls,
    format_count,
    format_json_line,
    format_table,
    to_one_line,
)


@pytest.mark.req("component.command.light")
def test_a_command_line_waits_for_no_loop_and_no_wire() -> None:
    code = "import sys, crabtalk.service.command_line; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert loaded.isdisjoint({"asyncio", "google.protobuf", "crabtalk.transport"})
    ours = {name for name in loaded if name.startswith("crabtalk.service.")}
    assert all(name.startswith("crabtalk.service.command_line") for name in ours)


@pytest.mark.req("component.command.visible")
@pytest.mark.parametrize("sign", ["\x1b", "\x07", "\x9b", "\x7f", "\u202e", "\u2066", "\u2028"])
def test_what_strangers_wrote_is_shown_and_not_obeyed(sign: str) -> None:
    written = f"a{sign}b"
    shown = [
        escape_controls(written),
        escape_controls(written, layout=True),
        to_one_line(written),
        format_json_line(written),
    ]
    assert all(sign not in each for each in shown)
    assert all("\\" in each for each in shown[:2])


@pytest.mark.req("component.command.visible")
def test_half_a_character_is_shown_as_what_it_is() -> None:
    assert escape_controls("\udc80") == "\\udc80"
    assert escape_controls("a\tb\nc\r\nd\re", layout=True) == "a\tb\nc\r\nd\\re"


@pytest.mark.req("component.command.table")
def test_columns_stand_below_each_other_in_any_script() -> None:
    assert format_table([["数数", "x", "y"], ["a", "long", ""]]) == "数数  x     y\na     long"


def test_one_is_one_and_none_are_many() -> None:
    told = [format_count(number, "message") for number in (0, 1, 2)]
    assert told == ["0 messages", "1 message", "2 messages"]
