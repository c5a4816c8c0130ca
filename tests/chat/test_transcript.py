"""The transcript of a chat's turns."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.chat.theme import Theme
from crabtalk.protocol import wire
from tests.chat.transcript_drawing import (
    DrawnTranscript,
    chunk_event,
    end_event,
    feed_event,
    make_tool_call,
    measure_widest,
    start_event,
    strip_escapes,
    text_events,
    thinking_events,
    tool_result_event,
    tool_start_event,
    tools_complete_event,
)

BASH = '{"command": "make test"}'


@pytest.mark.req("chat.show.turn")
def test_a_whole_turn_is_shown() -> None:
    drawing = DrawnTranscript()
    drawing.transcript.add_message("What is here?", agent="crab")
    drawing.handle_events(start_event(), *thinking_events("I should ", "look."), after=1.0)
    drawing.handle_events(
        tool_start_event(make_tool_call("bash", BASH)),
        tool_result_event("a.txt"),
        tools_complete_event(),
    )
    drawing.handle_events(*text_events("One file:\n\n- `a.txt`"), end_event())
    assert drawing.printed_lines == [
        "❯ What is here?",
        "",
        "thought for 3.0s · Ctrl+T",
        "✓ bash(make test)  3.2s",
        "  a.txt",
        "",
        "One file:",
        "",
        "• `a.txt`",
    ]
    assert not drawing.transcript.is_running
    assert drawing.transcript.end is not None
    assert drawing.live_lines == []


@pytest.mark.req("chat.show.settled")
def test_finished_text_is_given_out_once() -> None:
    drawing = DrawnTranscript()
    drawing.handle_events(start_event(), chunk_event("one\n\ntwo"))
    assert drawing.printed_lines == ["one"]
    assert drawing.take_text() == ""
    assert drawing.live_lines == ["", "two"]
    drawing.handle_events(end_event())
    assert drawing.printed_lines == ["one", "", "two"]


@pytest.mark.req("chat.show.thinking")
def test_a_thought_is_shown_live_then_as_a_line_and_can_be_shown_in_full() -> None:
    drawing = DrawnTranscript()
    opening, *pieces, closing = thinking_events("I should look. ", "Then say it.")
    drawing.handle_events(start_event(), opening, *pieces, after=1.0)
    assert drawing.live_lines == ["⠋ thinking  2.0s", "  I should look. Then say it."]
    drawing.handle_events(closing)
    assert drawing.printed_lines == ["thought for 2.0s · Ctrl+T"]
    drawing.handle_events(*text_events("Yes."), end_event())
    assert drawing.transcript.render_full("thinking", 80) == "I should look. Then say it.\n"
    assert DrawnTranscript().transcript.render_full("thinking", 80) == ""


@pytest.mark.req("chat.show.call")
def test_announced_calls_are_replaced_by_the_real_calls() -> None:
    drawing = DrawnTranscript()
    drawing.handle_events(
        start_event(),
        chunk_event("Let me look."),
        tool_start_event(make_tool_call("bash"), early=True),
    )
    assert drawing.live_lines == ["Let me look.", "", "⠋ bash(…)  0.0s"]
    drawing.handle_events(
        tool_start_event(
            make_tool_call("bash", BASH), make_tool_call("recall", '{"query": "x"}', "c2")
        )
    )
    assert drawing.printed_lines == ["Let me look."]
    assert drawing.live_lines == ["", "⠋ bash(make test)  0.0s", "⠋ recall(x)  0.0s"]


@pytest.mark.req("chat.show.call")
def test_ended_calls_are_printed_while_others_show_progress() -> None:
    drawing = DrawnTranscript()
    drawing.handle_events(
        start_event(),
        tool_start_event(
            make_tool_call("bash", BASH), make_tool_call("recall", '{"query": "x"}', "c2")
        ),
    )
    drawing.handle_feed_events(
        feed_event(
            wire.TOOL_PROGRESS, "r1", agent="crab", call_id="c1", content="\x1b[1m3/10\x1b[m"
        )
    )
    drawing.handle_events(tool_result_event("no entries", "c2", milliseconds=1), after=1.5)
    assert drawing.printed_lines == ["✓ recall(x)  1ms", "  no entries"]
    assert drawing.live_lines == ["⠴ bash(make test)  3/10  1.5s"]
    drawing.handle_events(tool_result_event("done"), tools_complete_event())
    assert drawing.printed_lines[2:] == ["✓ bash(make test)  3.2s", "  done"]


@pytest.mark.req("chat.show.bounded")
def test_fifty_calls_at_once_fit_and_each_is_shown_once() -> None:
    drawing = DrawnTranscript()
    drawing.height = 10
    drawing.handle_events(
        start_event(),
        tool_start_event(
            *(make_tool_call("read", f'{{"path": "f{n}"}}', f"c{n}") for n in range(50))
        ),
    )
    assert len(drawing.live_lines) == 10
    assert drawing.live_lines[-1] == "… 41 more running"
    for number in reversed(range(50)):
        drawing.handle_events(tool_result_event("", f"c{number}"))
    drawing.handle_events(tools_complete_event())
    assert drawing.printed_lines == [f"✓ read(f{n})  3.2s" for n in reversed(range(50))]
    assert drawing.live_lines == []


@pytest.mark.req("chat.show.output")
def test_all_outputs_of_the_last_turn_with_calls_can_be_shown() -> None:
    drawing = DrawnTranscript()
    output = "\n".join(map(str, range(100)))
    drawing.handle_events(
        start_event(),
        tool_start_event(make_tool_call("read", '{"path": "a"}')),
        tool_result_event(output),
        tools_complete_event(),
        end_event(),
    )
    assert "more lines, Ctrl+O" in drawing.printed
    drawing.handle_events(start_event(run_id="r2"), *text_events("Nothing to add."), end_event())
    shown = drawing.transcript.render_full("output", 80).splitlines()
    assert shown == ["✓ read(a)  3.2s", *(f"  {n}" for n in range(100))]
    drawing.handle_events(
        start_event(run_id="r3"),
        tool_start_event(make_tool_call("read", "{}")),
        tool_result_event("b"),
        tools_complete_event(),
        end_event(),
    )
    assert drawing.transcript.render_full("output", 80).splitlines() == ["✓ read  3.2s", "  b"]
    assert DrawnTranscript().transcript.render_full("output", 80) == ""


@pytest.mark.req("chat.show.bounded")
def test_only_the_latest_outputs_are_stored() -> None:
    drawing = DrawnTranscript()
    drawing.handle_events(start_event())
    for number in range(200):
        info = make_tool_call("read", f'{{"path": "f{number}"}}', f"c{number}")
        drawing.handle_events(
            tool_start_event(info),
            tool_result_event("x" * 60_000, f"c{number}"),
            tools_complete_event(),
        )
    shown = drawing.transcript.render_full("output", 80)
    assert 3_000_000 < len(shown) < 6_000_000
    assert "f199" in shown
    assert "f0)" not in shown


@pytest.mark.req("chat.show.guest")
def test_a_guests_answer_has_its_name_as_heading() -> None:
    drawing = DrawnTranscript(theme=Theme())
    drawing.transcript.add_message("and you?", agent="crab", guest="twin")
    drawing.handle_events(
        start_event("twin"), *text_events("I agree.", agent="twin"), end_event(agent="twin")
    )
    assert drawing.printed_lines == ["❯ @twin and you?", "", "twin", "I agree."]
    assert Theme().get_guest_colour("twin") in drawing.printed
    drawing.transcript.add_message("and you?", agent="crab")
    drawing.handle_events(start_event(), *text_events("I too."), end_event())
    assert drawing.printed_lines[4:] == ["", "❯ and you?", "", "I too."]


@pytest.mark.req("chat.show.ask")
def test_a_question_is_pending_until_answered_or_the_step_ends() -> None:
    asking = wire.StreamEvent(
        ask_user=wire.AskUserEvent(questions=[wire.AskQuestion(question="Which?")], ask_id="q1")
    )
    arguments = json.dumps({"questions": [{"question": "Which?", "header": "Colour"}]})
    drawing = DrawnTranscript()
    drawing.handle_events(
        start_event(), tool_start_event(make_tool_call("ask_user", arguments)), asking
    )
    assert get_pending_ask_id(drawing) == "q1"
    drawing.handle_events(tool_result_event('{"Which?": "blue"}'))
    assert get_pending_ask_id(drawing) == ""
    assert drawing.printed_lines == ["✓ ask_user(Colour)  3.2s", "  Which?", "    blue"]
    for settling in (tools_complete_event(), end_event()):
        drawing.handle_events(start_event(), asking)
        assert get_pending_ask_id(drawing) == "q1"
        drawing.handle_events(settling)
        assert get_pending_ask_id(drawing) == ""
    drawing.handle_events(start_event(), asking)
    drawing.transcript.clear_question()
    assert get_pending_ask_id(drawing) == ""


def get_pending_ask_id(drawing: DrawnTranscript) -> str:
    """Return the id of the pending question; empty if there is none."""
    return (
        drawing.transcript.pending_ask.ask_id if drawing.transcript.pending_ask is not None else ""
    )


def test_a_steer_is_shown_when_the_turn_reads_it() -> None:
    drawing = DrawnTranscript()
    steered = wire.StreamEvent(user_steered=wire.UserSteeredEvent(content="only the first"))
    drawing.handle_events(start_event(), steered, *text_events("All right."), end_event())
    assert drawing.printed_lines == ["❯ only the first", "", "All right."]


def test_usage_is_that_of_the_last_event() -> None:
    drawing = DrawnTranscript()
    for tokens in (10, 20):
        usage = wire.TokenUsage(prompt_tokens=tokens)
        drawing.handle_events(wire.StreamEvent(context_usage=wire.ContextUsageEvent(usage=usage)))
    assert drawing.transcript.usage is not None
    assert drawing.transcript.usage.usage.prompt_tokens == 20


@pytest.mark.req("chat.show.live")
def test_a_silent_turn_shows_how_long_it_waits() -> None:
    drawing = DrawnTranscript()
    drawing.handle_events(start_event())
    assert drawing.live_lines == []
    drawing.now += 3
    assert drawing.live_lines == ["⠋ waiting  3.0s"]
    drawing.handle_events(chunk_event("x"))
    assert drawing.live_lines == ["x"]


# ── Endings ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.show.endings")
@pytest.mark.parametrize(
    ("reason", "error", "shown"),
    [
        (wire.STOP_REASON_COMPLETED, "", []),
        (wire.STOP_REASON_CANCELLED, "", ["· stopped"]),
        (
            wire.STOP_REASON_LENGTH,
            "",
            ["· a limit of the model cut this answer off; say “go on”"],
        ),
        (wire.STOP_REASON_ERROR, "the model is gone", ["✗ the model is gone"]),
        (wire.STOP_REASON_UNKNOWN, "the model is gone", ["✗ the model is gone"]),
        (wire.STOP_REASON_NO_ACTION, "", ["· it said nothing"]),
        (wire.STOP_REASON_MAX_ITERATIONS, "", ["· it used up its steps; say so to go on"]),
    ],
)
def test_an_ending_the_answer_does_not_show_gets_a_notice(
    reason: "wire.StopReason.ValueType", error: str, shown: list[str]
) -> None:
    drawing = DrawnTranscript()
    drawing.handle_events(start_event(), end_event(reason, error))
    assert drawing.printed_lines == shown


@pytest.mark.req("chat.show.endings")
@pytest.mark.parametrize("reason", [wire.STOP_REASON_CANCELLED, wire.STOP_REASON_ERROR])
def test_the_end_of_a_turn_closes_everything_open(
    reason: "wire.StopReason.ValueType",
) -> None:
    error = "gone" if reason == wire.STOP_REASON_ERROR else ""
    last = "✗ gone" if error else "· stopped"
    drawing = DrawnTranscript()
    drawing.handle_events(start_event(), chunk_event("So **far"), end_event(reason, error))
    assert drawing.printed_lines == ["So **far", "", last]
    drawing = DrawnTranscript()
    drawing.handle_events(
        start_event(), *thinking_events("I")[:-1], end_event(reason, error), after=1.0
    )
    assert drawing.printed_lines == ["thought for 2.0s · Ctrl+T", last]
    drawing = DrawnTranscript()
    drawing.handle_events(
        start_event(),
        chunk_event("```\ncode"),
        tool_start_event(make_tool_call("bash"), early=True),
        end_event(reason, error),
    )
    assert drawing.printed_lines == ["───", "code", "", last]
    drawing = DrawnTranscript()
    drawing.handle_events(
        start_event(), tool_start_event(make_tool_call("bash", BASH)), end_event(reason, error)
    )
    why = "the turn ended before it did" if error else "stopped"
    assert drawing.printed_lines == ["✗ bash(make test)", f"  {why}", last]
    assert (drawing.live_lines, drawing.transcript.is_running) == ([], False)


@pytest.mark.req("chat.show.endings")
def test_a_broken_stream_leaves_nothing_open() -> None:
    drawing = DrawnTranscript()
    drawing.handle_events(
        start_event(), chunk_event("So far"), tool_start_event(make_tool_call("bash", BASH))
    )
    drawing.transcript.interrupt_turn(drawing.now)
    assert drawing.printed_lines == ["So far", "", "✗ bash(make test)", "  cut off"]
    assert (drawing.live_lines, drawing.transcript.is_running) == ([], False)
    # The same holds for a stream that begins again.
    drawing = DrawnTranscript()
    drawing.handle_events(
        start_event(),
        chunk_event("So far"),
        start_event(run_id="r2"),
        chunk_event("Again"),
        end_event(),
    )
    assert drawing.printed_lines == ["So far", "", "Again"]


# ── Notices and commands ────────────────────────────────────────────────────────────────────────


def test_a_notice_does_not_split_a_block() -> None:
    drawing = DrawnTranscript()
    drawing.handle_events(start_event(), chunk_event("```\none\n"))
    drawing.transcript.add_notice("the daemon is back")
    assert drawing.live_lines == ["", "· the daemon is back"]
    drawing.handle_events(chunk_event("two\n```\n\nafter\n\n"))
    assert drawing.printed_lines == ["───", "one", "two", "", "after", "", "· the daemon is back"]
    drawing.handle_events(chunk_event("and on"), end_event())
    assert drawing.printed_lines[7:] == ["", "and on"]


def test_a_notice_does_not_wait_for_a_running_call() -> None:
    drawing = DrawnTranscript()
    drawing.handle_events(start_event(), tool_start_event(make_tool_call("bash", BASH)))
    drawing.transcript.add_message("/agents", agent="crab")
    drawing.transcript.add_markdown("# Agents\n\n- crab")
    assert drawing.printed_lines == ["❯ /agents", "", "# Agents", "", "• crab"]
    assert drawing.live_lines == ["", "⠋ bash(make test)  0.0s"]


@pytest.mark.req("chat.show.history")
def test_history_is_shown_as_finished() -> None:
    message = wire.ConversationMessage
    drawing = DrawnTranscript()
    drawing.transcript.add_history(
        [
            message(role="system", content="You are crab."),
            message(role="user", content="What is here?"),
            message(role="assistant", reasoning="Look.", tool_calls=[make_tool_call("bash", BASH)]),
            message(role="tool", content="a.txt", call_id="c1"),
            message(role="assistant", content="One **file**."),
            message(role="user", content="And you?"),
            message(role="assistant", content="I agree.", agent="twin"),
        ]
    )
    assert drawing.printed_lines == [
        "❯ What is here?",
        "",
        "● bash(make test)",
        "  a.txt",
        "",
        "One **file**.",
        "",
        "❯ And you?",
        "",
        "twin",
        "I agree.",
    ]
    assert drawing.live_lines == []
    assert drawing.transcript.render_full("thinking", 80) == "Look.\n"


@pytest.mark.req("chat.history.failed")
def test_history_shows_failed_calls_and_typed_commands() -> None:
    message = wire.ConversationMessage
    drawing = DrawnTranscript()
    drawing.transcript.add_history(
        [
            message(role="user", content="in June\n\n<skill>…</skill>", said="/tides in June"),
            message(role="assistant", tool_calls=[make_tool_call("bash", BASH)], run_id="r1"),
            message(role="tool", content="no such file", is_error=True, run_id="r1", call_id="c1"),
            message(role="assistant", tool_calls=[make_tool_call("bash", BASH)], run_id="r1"),
            message(role="tool", content="a.txt", run_id="r1", call_id="c1"),  # an id used again
        ]
    )
    assert drawing.printed_lines == [
        "❯ /tides in June",
        "",
        "✗ bash(make test)",
        "  no such file",
        "✓ bash(make test)",
        "  a.txt",
    ]


# ── Out of order ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.show.order")
def test_events_out_of_order_are_shown() -> None:
    drawing = DrawnTranscript()
    drawing.handle_events(
        tool_result_event("whose?", "unknown"), tools_complete_event(), end_event()
    )
    assert drawing.printed_lines == ["✓ a call  3.2s", "  whose?"]
    drawing = DrawnTranscript()
    drawing.handle_events(
        chunk_event("no start"), *thinking_events("in between"), chunk_event("more"), end_event()
    )
    assert drawing.printed_lines == ["no start", "", "thought for 0.0s · Ctrl+T", "", "more"]
    drawing = DrawnTranscript()
    drawing.handle_events(tool_start_event(make_tool_call("bash", BASH)), tools_complete_event())
    assert drawing.printed_lines == ["✗ bash(make test)", "  it gave no result"]


EVENTS = [
    start_event(),
    start_event("twin", "r2"),
    *text_events("# a\n\n|b|\n|-|\n", "```\nc", agent="twin"),
    *thinking_events("hm"),
    tool_start_event(make_tool_call("bash"), early=True),
    tool_start_event(
        make_tool_call("bash", BASH),
        make_tool_call("delegate", '{"tasks": [{}], "background": true}', "c2"),
    ),
    tool_start_event(),
    tool_result_event("x\ny", "c1"),
    tool_result_event('[{"task_id": 1}]', "c2"),
    tool_result_event("", "c9", is_error=True),
    tools_complete_event(),
    end_event(),
    end_event(wire.STOP_REASON_CANCELLED),
    end_event(wire.STOP_REASON_ERROR, "e"),
    wire.StreamEvent(),
    wire.StreamEvent.FromString(b"\xf2\x06\x01x"),  # of an unknown kind
    wire.StreamEvent(ask_user=wire.AskUserEvent()),
    wire.StreamEvent(user_steered=wire.UserSteeredEvent(content="s")),
    wire.StreamEvent(context_usage=wire.ContextUsageEvent()),
]
FEED = [
    feed_event(wire.TEXT_DELTA, "k1", parent=("r1", "c2", 0)),
    feed_event(
        wire.TOOL_START, "k1", parent=("r1", "c2", 0), tools=[make_tool_call("bash", BASH, "x")]
    ),
    feed_event(wire.TOOL_RESULT, "k1", parent=("r1", "c2", 0), call_id="x"),
    feed_event(wire.DONE, "k1", parent=("r1", "c2", 0)),
    feed_event(wire.TOOL_PROGRESS, "r1", call_id="c1", content="3"),
    feed_event(wire.TEXT_DELTA, "k2", parent=("k1", "x", 7)),
    feed_event(wire.AgentEventMsg.FromString(b"\x18\xc8\x01").kind, "k2", parent=("k1", "x", 7)),
    wire.AgentEventMsg(),
]


@pytest.mark.req("chat.show.order")
@given(
    events=st.lists(st.sampled_from(EVENTS) | st.sampled_from(FEED), max_size=30),
    width=st.sampled_from([80, 20]),
    height=st.integers(0, 8),
)
def test_any_order_of_events_can_be_drawn(
    events: list[wire.StreamEvent | wire.AgentEventMsg], width: int, height: int
) -> None:
    drawing = DrawnTranscript(width)
    drawing.height = height
    drawing.transcript.add_message("hi", agent="crab")
    for event in events:
        if isinstance(event, wire.StreamEvent):
            drawing.handle_events(event, after=0.1)
        else:
            drawing.handle_feed_events(event, after=0.1)
        assert measure_widest(drawing.live_lines) <= width
    drawing.handle_events(end_event())
    drawing.height = 99
    assert [
        line for line in drawing.live_lines if "background" not in line and "worker" not in line
    ] == []
    assert measure_widest(strip_escapes(drawing.printed.splitlines())) <= width
    assert "\n\n\n" not in drawing.printed
