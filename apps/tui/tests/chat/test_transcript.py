"""What a chat shows of its turns."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.tui.tests.chat.drawn import (
    Drawn,
    bare,
    call,
    calls,
    chunk,
    complete,
    end,
    on_feed,
    result,
    said,
    start,
    thought,
    widest,
)
from crabtalk.protocol import wire
from crabtalk_tui.chat.look import Look

BASH = '{"command": "make test"}'


@pytest.mark.req("chat.show.turn")
def test_a_turn_from_its_first_word_to_its_end() -> None:
    drawn = Drawn()
    drawn.transcript.begin("What is here?", agent="crab")
    drawn.feed(start(), *thought("I should ", "look."), after=1.0)
    drawn.feed(calls(call("bash", BASH)), result("a.txt"), complete())
    drawn.feed(*said("One file:\n\n- `a.txt`"), end())
    assert drawn.lines == [
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
    assert not drawn.transcript.running
    assert drawn.transcript.end is not None
    assert drawn.live == []


@pytest.mark.req("chat.show.settled")
def test_what_was_taken_is_never_given_out_again() -> None:
    drawn = Drawn()
    drawn.feed(start(), chunk("one\n\ntwo"))
    assert drawn.lines == ["one"]
    assert drawn.take() == ""
    assert drawn.live == ["", "two"]
    drawn.feed(end())
    assert drawn.lines == ["one", "", "two"]


@pytest.mark.req("chat.show.thinking")
def test_thinking_is_seen_while_it_lasts_then_a_line_and_in_full_when_asked_for() -> None:
    drawn = Drawn()
    opening, *pieces, closing = thought("I should look. ", "Then say it.")
    drawn.feed(start(), opening, *pieces, after=1.0)
    assert drawn.live == ["⠋ thinking  2.0s", "  I should look. Then say it."]
    drawn.feed(closing)
    assert drawn.lines == ["thought for 2.0s · Ctrl+T"]
    drawn.feed(*said("Yes."), end())
    assert drawn.transcript.full("thinking", 80) == "I should look. Then say it.\n"
    assert Drawn().transcript.full("thinking", 80) == ""


@pytest.mark.req("chat.show.call")
def test_an_early_notice_gives_way_to_the_calls_it_announced() -> None:
    drawn = Drawn()
    drawn.feed(start(), chunk("Let me look."), calls(call("bash"), early=True))
    assert drawn.live == ["Let me look.", "", "⠋ bash(…)  0.0s"]
    drawn.feed(calls(call("bash", BASH), call("recall", '{"query": "x"}', "c2")))
    assert drawn.lines == ["Let me look."]
    assert drawn.live == ["", "⠋ bash(make test)  0.0s", "⠋ recall(x)  0.0s"]


@pytest.mark.req("chat.show.call")
def test_calls_are_shown_for_good_as_they_end_and_how_far_the_others_are() -> None:
    drawn = Drawn()
    drawn.feed(start(), calls(call("bash", BASH), call("recall", '{"query": "x"}', "c2")))
    drawn.follow(
        on_feed(wire.TOOL_PROGRESS, "r1", agent="crab", call_id="c1", content="\x1b[1m3/10\x1b[m")
    )
    drawn.feed(result("no entries", "c2", milliseconds=1), after=1.5)
    assert drawn.lines == ["✓ recall(x)  1ms", "  no entries"]
    assert drawn.live == ["⠴ bash(make test)  3/10  1.5s"]
    drawn.feed(result("done"), complete())
    assert drawn.lines[2:] == ["✓ bash(make test)  3.2s", "  done"]


@pytest.mark.req("chat.show.bounded")
def test_fifty_calls_at_once_fit_and_each_is_shown_once() -> None:
    drawn = Drawn()
    drawn.height = 10
    drawn.feed(start(), calls(*(call("read", f'{{"path": "f{n}"}}', f"c{n}") for n in range(50))))
    assert len(drawn.live) == 10
    assert drawn.live[-1] == "… 41 more running"
    for number in reversed(range(50)):
        drawn.feed(result("", f"c{number}"))
    drawn.feed(complete())
    assert drawn.lines == [f"✓ read(f{n})  3.2s" for n in reversed(range(50))]
    assert drawn.live == []


@pytest.mark.req("chat.show.output")
def test_all_outputs_of_the_last_turn_that_had_some_can_be_seen() -> None:
    drawn = Drawn()
    output = "\n".join(map(str, range(100)))
    drawn.feed(start(), calls(call("read", '{"path": "a"}')), result(output), complete(), end())
    assert "more lines, Ctrl+O" in drawn.printed
    drawn.feed(start(run_id="r2"), *said("Nothing to add."), end())
    shown = drawn.transcript.full("output", 80).splitlines()
    assert shown == ["✓ read(a)  3.2s", *(f"  {n}" for n in range(100))]
    drawn.feed(start(run_id="r3"), calls(call("read", "{}")), result("b"), complete(), end())
    assert drawn.transcript.full("output", 80).splitlines() == ["✓ read  3.2s", "  b"]
    assert Drawn().transcript.full("output", 80) == ""


@pytest.mark.req("chat.show.bounded")
def test_of_endless_outputs_the_last_are_kept() -> None:
    drawn = Drawn()
    drawn.feed(start())
    for number in range(200):
        info = call("read", f'{{"path": "f{number}"}}', f"c{number}")
        drawn.feed(calls(info), result("x" * 60_000, f"c{number}"), complete())
    shown = drawn.transcript.full("output", 80)
    assert 3_000_000 < len(shown) < 6_000_000
    assert "f199" in shown
    assert "f0)" not in shown


@pytest.mark.req("chat.show.guest")
def test_what_a_guest_says_is_headed_by_its_name() -> None:
    drawn = Drawn(look=Look())
    drawn.transcript.begin("and you?", agent="crab", guest="twin")
    drawn.feed(start("twin"), *said("I agree.", agent="twin"), end(agent="twin"))
    assert drawn.lines == ["❯ @twin and you?", "", "twin", "I agree."]
    assert Look().guest("twin") in drawn.printed
    drawn.transcript.begin("and you?", agent="crab")
    drawn.feed(start(), *said("I too."), end())
    assert drawn.lines[4:] == ["", "❯ and you?", "", "I too."]


@pytest.mark.req("chat.show.ask")
def test_a_question_waits_until_it_is_answered_or_cannot_be_any_more() -> None:
    asking = wire.StreamEvent(
        ask_user=wire.AskUserEvent(questions=[wire.AskQuestion(question="Which?")], ask_id="q1")
    )
    arguments = json.dumps({"questions": [{"question": "Which?", "header": "Colour"}]})
    drawn = Drawn()
    drawn.feed(start(), calls(call("ask_user", arguments)), asking)
    assert asked_by(drawn) == "q1"
    drawn.feed(result('{"Which?": "blue"}'))
    assert asked_by(drawn) == ""
    assert drawn.lines == ["✓ ask_user(Colour)  3.2s", "  Which?", "    blue"]
    for settling in (complete(), end()):
        drawn.feed(start(), asking)
        assert asked_by(drawn) == "q1"
        drawn.feed(settling)
        assert asked_by(drawn) == ""
    drawn.feed(start(), asking)
    drawn.transcript.answered()
    assert asked_by(drawn) == ""


def asked_by(drawn: Drawn) -> str:
    """The question that waits for an answer."""
    return drawn.transcript.ask.ask_id if drawn.transcript.ask is not None else ""


def test_what_is_said_into_a_turn_is_shown_when_it_is_heard() -> None:
    drawn = Drawn()
    steered = wire.StreamEvent(user_steered=wire.UserSteeredEvent(content="only the first"))
    drawn.feed(start(), steered, *said("All right."), end())
    assert drawn.lines == ["❯ only the first", "", "All right."]


def test_usage_is_that_of_the_last_call() -> None:
    drawn = Drawn()
    for tokens in (10, 20):
        usage = wire.TokenUsage(prompt_tokens=tokens)
        drawn.feed(wire.StreamEvent(context_usage=wire.ContextUsageEvent(usage=usage)))
    assert drawn.transcript.usage is not None
    assert drawn.transcript.usage.usage.prompt_tokens == 20


@pytest.mark.req("chat.show.live")
def test_when_nothing_comes_it_is_said_how_long() -> None:
    drawn = Drawn()
    drawn.feed(start())
    assert drawn.live == []
    drawn.now += 3
    assert drawn.live == ["⠋ waiting  3.0s"]
    drawn.feed(chunk("x"))
    assert drawn.live == ["x"]


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
def test_how_a_turn_ended_is_said_where_the_answer_does_not_show_it(
    reason: "wire.StopReason.ValueType", error: str, shown: list[str]
) -> None:
    drawn = Drawn()
    drawn.feed(start(), end(reason, error))
    assert drawn.lines == shown


@pytest.mark.req("chat.show.endings")
@pytest.mark.parametrize("reason", [wire.STOP_REASON_CANCELLED, wire.STOP_REASON_ERROR])
def test_a_turn_that_ends_with_something_open_closes_it(
    reason: "wire.StopReason.ValueType",
) -> None:
    error = "gone" if reason == wire.STOP_REASON_ERROR else ""
    last = "✗ gone" if error else "· stopped"
    drawn = Drawn()
    drawn.feed(start(), chunk("So **far"), end(reason, error))
    assert drawn.lines == ["So **far", "", last]
    drawn = Drawn()
    drawn.feed(start(), *thought("I")[:-1], end(reason, error), after=1.0)
    assert drawn.lines == ["thought for 2.0s · Ctrl+T", last]
    drawn = Drawn()
    drawn.feed(start(), chunk("```\ncode"), calls(call("bash"), early=True), end(reason, error))
    assert drawn.lines == ["───", "code", "", last]
    drawn = Drawn()
    drawn.feed(start(), calls(call("bash", BASH)), end(reason, error))
    why = "the turn ended before it did" if error else "stopped"
    assert drawn.lines == ["✗ bash(make test)", f"  {why}", last]
    assert (drawn.live, drawn.transcript.running) == ([], False)


@pytest.mark.req("chat.show.endings")
def test_a_stream_that_breaks_off_leaves_nothing_open() -> None:
    drawn = Drawn()
    drawn.feed(start(), chunk("So far"), calls(call("bash", BASH)))
    drawn.transcript.cut(drawn.now)
    assert drawn.lines == ["So far", "", "✗ bash(make test)", "  cut off"]
    assert (drawn.live, drawn.transcript.running) == ([], False)
    # And so does one that begins anew.
    drawn = Drawn()
    drawn.feed(start(), chunk("So far"), start(run_id="r2"), chunk("Again"), end())
    assert drawn.lines == ["So far", "", "Again"]


# ── Notices and commands ────────────────────────────────────────────────────────────────────────


def test_a_notice_tears_no_text_apart() -> None:
    drawn = Drawn()
    drawn.feed(start(), chunk("```\none\n"))
    drawn.transcript.notice("the daemon is back")
    assert drawn.live == ["", "· the daemon is back"]
    drawn.feed(chunk("two\n```\n\nafter\n\n"))
    assert drawn.lines == ["───", "one", "two", "", "after", "", "· the daemon is back"]
    drawn.feed(chunk("and on"), end())
    assert drawn.lines[7:] == ["", "and on"]


def test_a_notice_does_not_wait_for_a_call_that_runs() -> None:
    drawn = Drawn()
    drawn.feed(start(), calls(call("bash", BASH)))
    drawn.transcript.begin("/agents", agent="crab")
    drawn.transcript.show("# Agents\n\n- crab")
    assert drawn.lines == ["❯ /agents", "", "# Agents", "", "• crab"]
    assert drawn.live == ["", "⠋ bash(make test)  0.0s"]


@pytest.mark.req("chat.show.history")
def test_what_was_said_before_is_shown_as_finished() -> None:
    message = wire.ConversationMessage
    drawn = Drawn()
    drawn.transcript.history(
        [
            message(role="system", content="You are crab."),
            message(role="user", content="What is here?"),
            message(role="assistant", reasoning="Look.", tool_calls=[call("bash", BASH)]),
            message(role="tool", content="a.txt", call_id="c1"),
            message(role="assistant", content="One **file**."),
            message(role="user", content="And you?"),
            message(role="assistant", content="I agree.", agent="twin"),
        ]
    )
    assert drawn.lines == [
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
    assert drawn.live == []
    assert drawn.transcript.full("thinking", 80) == "Look.\n"


@pytest.mark.req("chat.history.failed")
def test_calls_that_failed_and_commands_that_were_typed_are_shown_as_such() -> None:
    message = wire.ConversationMessage
    drawn = Drawn()
    drawn.transcript.history(
        [
            message(role="user", content="in June\n\n<skill>…</skill>", said="/tides in June"),
            message(role="assistant", tool_calls=[call("bash", BASH)], run_id="r1"),
            message(role="tool", content="no such file", is_error=True, run_id="r1", call_id="c1"),
            message(role="assistant", tool_calls=[call("bash", BASH)], run_id="r1"),
            message(role="tool", content="a.txt", run_id="r1", call_id="c1"),  # an id used again
        ]
    )
    assert drawn.lines == [
        "❯ /tides in June",
        "",
        "✗ bash(make test)",
        "  no such file",
        "✓ bash(make test)",
        "  a.txt",
    ]


# ── Out of order ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.show.order")
def test_what_comes_out_of_order_is_shown_as_well_as_can_be() -> None:
    drawn = Drawn()
    drawn.feed(result("whose?", "nobody"), complete(), end())
    assert drawn.lines == ["✓ a call  3.2s", "  whose?"]
    drawn = Drawn()
    drawn.feed(chunk("no start"), *thought("in between"), chunk("more"), end())
    assert drawn.lines == ["no start", "", "thought for 0.0s · Ctrl+T", "", "more"]
    drawn = Drawn()
    drawn.feed(calls(call("bash", BASH)), complete())
    assert drawn.lines == ["✗ bash(make test)", "  it gave no result"]


EVENTS = [
    start(),
    start("twin", "r2"),
    *said("# a\n\n|b|\n|-|\n", "```\nc", agent="twin"),
    *thought("hm"),
    calls(call("bash"), early=True),
    calls(call("bash", BASH), call("delegate", '{"tasks": [{}], "background": true}', "c2")),
    calls(),
    result("x\ny", "c1"),
    result('[{"task_id": 1}]', "c2"),
    result("", "c9", is_error=True),
    complete(),
    end(),
    end(wire.STOP_REASON_CANCELLED),
    end(wire.STOP_REASON_ERROR, "e"),
    wire.StreamEvent(),
    wire.StreamEvent.FromString(b"\xf2\x06\x01x"),  # of a kind that is not known yet
    wire.StreamEvent(ask_user=wire.AskUserEvent()),
    wire.StreamEvent(user_steered=wire.UserSteeredEvent(content="s")),
    wire.StreamEvent(context_usage=wire.ContextUsageEvent()),
]
FEED = [
    on_feed(wire.TEXT_DELTA, "k1", parent=("r1", "c2", 0)),
    on_feed(wire.TOOL_START, "k1", parent=("r1", "c2", 0), tools=[call("bash", BASH, "x")]),
    on_feed(wire.TOOL_RESULT, "k1", parent=("r1", "c2", 0), call_id="x"),
    on_feed(wire.DONE, "k1", parent=("r1", "c2", 0)),
    on_feed(wire.TOOL_PROGRESS, "r1", call_id="c1", content="3"),
    on_feed(wire.TEXT_DELTA, "k2", parent=("k1", "x", 7)),
    on_feed(wire.AgentEventMsg.FromString(b"\x18\xc8\x01").kind, "k2", parent=("k1", "x", 7)),
    wire.AgentEventMsg(),
]


@pytest.mark.req("chat.show.order")
@given(
    events=st.lists(st.sampled_from(EVENTS) | st.sampled_from(FEED), max_size=30),
    width=st.sampled_from([80, 20]),
    height=st.integers(0, 8),
)
def test_no_order_of_events_is_too_odd(
    events: list[wire.StreamEvent | wire.AgentEventMsg], width: int, height: int
) -> None:
    drawn = Drawn(width)
    drawn.height = height
    drawn.transcript.begin("hi", agent="crab")
    for event in events:
        if isinstance(event, wire.StreamEvent):
            drawn.feed(event, after=0.1)
        else:
            drawn.follow(event, after=0.1)
        assert widest(drawn.live) <= width
    drawn.feed(end())
    drawn.height = 99
    assert [line for line in drawn.live if "background" not in line and "worker" not in line] == []
    assert widest(bare(drawn.printed.splitlines())) <= width
    assert "\n\n\n" not in drawn.printed
