"""Shared command-line functions: cheap imports, and output that cannot control the terminal."""

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
def test_the_command_line_imports_no_event_loop_and_no_protocol() -> None:
    code = "import sys, crabtalk.service.command_line; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split())
    assert loaded.isdisjoint({"asyncio", "google.protobuf", "crabtalk.transport"})
    our_modules = {name for name in loaded if name.startswith("crabtalk.service.")}
    assert all(name.startswith("crabtalk.service.command_line") for name in our_modules)


@pytest.mark.req("component.command.visible")
@pytest.mark.parametrize("sign", ["\x1b", "\x07", "\x9b", "\x7f", "\u202e", "\u2066", "\u2028"])
def test_control_characters_are_shown_and_not_obeyed(sign: str) -> None:
    text = f"a{sign}b"
    outputs = [
        escape_controls(text),
        escape_controls(text, layout=True),
        to_one_line(text),
        format_json_line(text),
    ]
    assert all(sign not in output for output in outputs)
    assert all("\\" in output for output in outputs[:2])


@pytest.mark.req("component.command.visible")
def test_a_lone_surrogate_is_shown_escaped() -> None:
    assert escape_controls("\udc80") == "\\udc80"
    assert escape_controls("a\tb\nc\r\nd\re", layout=True) == "a\tb\nc\r\nd\\re"


@pytest.mark.req("component.command.table")
def test_table_columns_are_aligned_in_any_script() -> None:
    assert format_table([["数数", "x", "y"], ["a", "long", ""]]) == "数数  x     y\na     long"


def test_counts_have_the_right_plural() -> None:
    counts = [format_count(number, "message") for number in (0, 1, 2)]
    assert counts == ["0 messages", "1 message", "2 messages"]
