"""Rendering of calls, thoughts, edits, notices and people's messages."""

import json

import pytest

from crabtalk.chat.block_renderer import (
    MAX_CHANGED_LINES,
    MAX_MESSAGE_LINES,
    BlockRenderer,
    diff_lines,
    format_duration,
)
from crabtalk.chat.theme import PLAIN_THEME, Theme
from crabtalk.chat.tool_calls import ChatToolCall
from tests.chat.transcript_drawing import measure_widest, strip_escapes

BLOCKS = BlockRenderer(PLAIN_THEME)
COLOURED = BlockRenderer(Theme())
STYLES = Theme().styles


def make_ended_call(
    name: str = "bash", output: str = "", *, is_error: bool | None = False, **arguments: object
) -> ChatToolCall:
    call = ChatToolCall("c1", name, json.dumps(arguments))
    call.finish(output, 3.2, is_error)
    return call


@pytest.mark.req("chat.show.call")
def test_a_call_is_a_line_with_its_time_and_how_it_ended() -> None:
    assert BLOCKS.render_ended_call(make_ended_call(command="make test"), 80) == [
        "✓ bash(make test)  3.2s"
    ]
    assert BLOCKS.render_ended_call(make_ended_call(command="make", is_error=True), 80) == [
        "✗ bash(make)  3.2s"
    ]
    assert BLOCKS.render_ended_call(make_ended_call(command="make", is_error=None), 80) == [
        "● bash(make)  3.2s"
    ]
    for is_error, style in ((False, STYLES.done), (True, STYLES.failed)):
        line = COLOURED.render_call_head(make_ended_call(command="make", is_error=is_error), 80)
        assert line.startswith(f"\x1b[{style}m")


@pytest.mark.req("chat.show.call")
def test_only_is_error_marks_a_call_as_failed() -> None:
    failed = '{"stdout": "", "stderr": "error: no", "exit_code": 1}'
    assert BLOCKS.render_call_head(make_ended_call(output=failed, command="x"), 80).startswith("✓")
    assert BLOCKS.render_call_head(
        make_ended_call(output="all is well", command="x", is_error=True), 80
    ).startswith("✗")


@pytest.mark.req("chat.show.call")
def test_a_running_call_has_a_spinner_a_timer_and_its_progress() -> None:
    call = ChatToolCall("c1", "bash", '{"command": "make"}', started=10.0)
    assert BLOCKS.render_running_call(call, 11.5, 80) == "⠴ bash(make)  1.5s"
    assert BLOCKS.render_running_call(call, 75.0, 80) == "⠋ bash(make)  1m 05s"
    call.progress = "3/10"
    assert BLOCKS.render_running_call(call, 11.5, 80) == "⠴ bash(make)  3/10  1.5s"


@pytest.mark.req("chat.show.narrow")
@pytest.mark.parametrize("width", [80, 40, 20, 10])
def test_a_line_is_cut_to_the_terminal_and_keeps_its_time(width: int) -> None:
    call = make_ended_call(command="find / -name '*.py' -exec grep -l " + "日本 " * 50)
    line = BLOCKS.render_call_head(call, width)
    assert line.endswith("…  3.2s")
    assert measure_widest([line]) <= width


@pytest.mark.req("chat.show.output")
def test_the_first_lines_of_an_output_are_shown_with_the_number_of_hidden_ones() -> None:
    output = "\n\n".join(f"line {n}" for n in range(1, 126))
    assert BLOCKS.render_ended_call(make_ended_call("read", output, path="a"), 80)[1:] == [
        *(f"  line {n}" for n in range(1, 6)),
        "  … 120 more lines, Ctrl+O shows all",
    ]
    failed = BLOCKS.render_ended_call(make_ended_call("read", output, path="a", is_error=True), 80)[
        1:
    ]
    assert len(failed) == 11
    assert failed[-1] == "  … 115 more lines, Ctrl+O shows all"
    assert BLOCKS.render_ended_call(make_ended_call("read", "1\n2\n3\n4\n5\n6", path="a"), 80)[
        -1
    ] == ("  … 1 more line, Ctrl+O shows all")
    without_keys = BlockRenderer(PLAIN_THEME, has_keys=False).render_ended_call(
        make_ended_call("read", output, path="a"), 80
    )
    assert without_keys[-1] == "  … 120 more lines"


@pytest.mark.req("chat.show.output")
def test_a_whole_output_can_be_shown() -> None:
    output = "\n".join(f"line {n} " + "x" * 100 for n in range(50))
    lines = BLOCKS.render_full_call(make_ended_call("read", output, path="a"), 40)
    assert measure_widest(lines) <= 40
    shown = "".join(line[2:] for line in lines[1:])
    assert "".join(shown.split()) == "".join(output.split())


@pytest.mark.req("chat.show.hostile")
def test_binary_output_is_escaped_and_fits() -> None:
    junk = bytes(range(256)).decode("latin-1") * 40 + "\n" + "\u202e" * 500
    for lines in (
        BLOCKS.render_ended_call(make_ended_call("read", junk, path=junk[:90]), 40),
        BLOCKS.render_full_call(make_ended_call("read", junk, path="a"), 40),
        BLOCKS.render_message(junk, 40, guest="\x1b"),
        BLOCKS.render_notice(junk, "error", 40),
        BLOCKS.render_thinking(junk, 1, 1, 40),
        BLOCKS.render_full_thought(junk, 40),
    ):
        assert measure_widest(lines) <= 40
        steering = [
            c for c in "".join(lines) if ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e"
        ]
        assert steering == []


@pytest.mark.req("chat.show.edit")
def test_an_edit_is_shown_as_a_diff() -> None:
    call = make_ended_call(
        "edit",
        "ok",
        path="a.py",
        old_string="def f():\n    -- x\n    return 1\n",
        new_string="def f():\n    return 2\n    ++ y\n",
    )
    assert BLOCKS.render_ended_call(call, 80) == [
        "✓ edit(a.py)  3.2s",
        "    def f():",
        "  -     -- x",
        "  -     return 1",
        "  +     return 2",
        "  +     ++ y",
    ]
    coloured = COLOURED.render_ended_call(call, 80)
    assert coloured[2] == f"  \x1b[{STYLES.removed}m-     -- x\x1b[0m"
    assert coloured[4] == f"  \x1b[{STYLES.added}m+     return 2\x1b[0m"


@pytest.mark.req("chat.show.edit")
def test_a_long_edit_is_cut_and_can_be_shown_whole() -> None:
    old = "\n".join(f"old {n}" for n in range(1000))
    call = make_ended_call("edit", "ok", path="a", old_string=old, new_string="new")
    assert len(BLOCKS.render_ended_call(call, 80)) == 1 + MAX_CHANGED_LINES + 1
    assert BLOCKS.render_ended_call(call, 80)[-1] == "  … 985 more lines, Ctrl+O shows all"
    assert len(BLOCKS.render_full_call(call, 80)) == 1 + 1000 + 1
    assert diff_lines(["--- a"], ["+++ b"]) == ["- --- a", "+ +++ b"]


@pytest.mark.req("chat.show.edit")
def test_a_failed_edit_shows_its_error_and_no_diff() -> None:
    call = make_ended_call(
        "edit", "no such text", is_error=True, path="a", old_string="a", new_string="b"
    )
    assert BLOCKS.render_ended_call(call, 80)[1:] == ["  no such text"]
    odd = make_ended_call("edit", "ok", path="a", old_string=1)
    assert BLOCKS.render_ended_call(odd, 80)[1:] == ["  ok"]


@pytest.mark.req("chat.show.ask")
def test_a_question_is_shown_with_its_answer() -> None:
    call = make_ended_call(
        "ask_user",
        '{"Which colour?": "blue"}',
        questions=[{"question": "Which colour?", "header": "Colour"}],
    )
    assert BLOCKS.render_ended_call(call, 80) == [
        "✓ ask_user(Colour)  3.2s",
        "  Which colour?",
        "    blue",
    ]


@pytest.mark.req("chat.show.thinking")
def test_thinking_is_a_dim_line_with_the_end_of_the_thought() -> None:
    text = "First this. " * 50 + "Then I look."
    lines = BLOCKS.render_thinking(text, 4.0, 0.0, 40)
    assert lines[0] == "⠋ thinking  4.0s"
    assert len(lines) == 3
    assert lines[-1].endswith("Then I look.")
    assert BLOCKS.render_thought(4.2, 80) == ["thought for 4.2s · Ctrl+T"]
    assert BlockRenderer(PLAIN_THEME, has_keys=False).render_thought(4.2, 80) == [
        "thought for 4.2s"
    ]
    assert COLOURED.render_thought(4.2, 80)[0].startswith(f"\x1b[{STYLES.dim}m")
    assert "".join("".join(BLOCKS.render_full_thought(text, 40)).split()) == "".join(text.split())


def test_peoples_messages_have_a_mark_and_keep_their_lines() -> None:
    assert BLOCKS.render_message("one\n  two", 80) == ["❯ one", "    two"]
    assert BLOCKS.render_message("abcdef", 5) == ["❯ abc", "  def"]
    assert BLOCKS.render_message("", 80) == ["❯ "]
    long = BLOCKS.render_message("\n".join("x" * 50), 80)
    assert len(long) == MAX_MESSAGE_LINES + 1
    assert long[-1] == "  … 30 more lines"


@pytest.mark.req("chat.show.guest")
def test_a_guests_name_has_its_own_colour() -> None:
    assert strip_escapes([COLOURED.render_name("twin")]) == ["twin"]
    assert Theme().get_guest_colour("twin") in COLOURED.render_name("twin")
    assert BLOCKS.render_message("and you?", 80, guest="twin") == ["❯ @twin and you?"]
    assert BLOCKS.render_message("@twin and you?", 80, guest="twin") == ["❯ @twin and you?"]


def test_notices_differ_by_mark_and_colour() -> None:
    assert BLOCKS.render_notice("the daemon is back", "info", 80) == ["· the daemon is back"]
    assert BLOCKS.render_notice("no such agent", "error", 80) == ["✗ no such agent"]
    assert COLOURED.render_notice("no", "error", 80) == [f"\x1b[{STYLES.failed}m✗ no\x1b[0m"]
    assert BLOCKS.render_notice("one two three", "info", 9) == ["· one two", "  three"]


def test_durations_are_rounded_by_their_size() -> None:
    seconds = (0.0, 0.009, 0.0994, 0.0996, 3.21, 9.94, 9.96, 59.4, 59.6, 125.0, 3725.0, -1.0)
    assert [format_duration(s) for s in seconds] == [
        *("0.0s", "9ms", "99ms", "0.1s", "3.2s", "9.9s"),
        *("10s", "59s", "1m 00s", "2m 05s", "1h 02m", "0.0s"),
    ]
