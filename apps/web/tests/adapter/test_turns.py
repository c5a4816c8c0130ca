"""Turns as people see them: the envelopes for each event that can happen."""

import json

import pytest
from msgspec import UNSET

from apps.web.tests.adapter.adapter_session import (
    DONE,
    KILLED,
    SESSION,
    AdapterSession,
    make_call,
    make_delegate_call,
    make_parent,
    make_tool_returned,
    make_tools_called,
    summarize_envelopes,
)
from crabtalk_web.adapter import EnvelopeAdapter, ReceivedEvent
from crabtalk_web.adapter.envelope_adapter import CONNECTION_LOST_TEXT, END_UNSEEN_TEXT
from crabtalk_web.adapter.run_events import (
    AgentQuestion,
    AnswerOption,
    ConversationCompacted,
    EndReason,
    QuestionsAsked,
    RunBegan,
    RunEnded,
    RunSteered,
    SegmentEnded,
    StepEnded,
    TextPiece,
    TokensUsed,
    ToolCallRequest,
)
from crabtalk_web.stream import (
    EnvelopeError,
    EnvelopeUsage,
    FileEvent,
    TextEvent,
    ToolCallEnd,
    ToolCallStart,
    derive_id,
    encode_envelope,
)

SURE = AgentQuestion("Really?", "Sure", (AnswerOption("Yes"), AnswerOption("No", "never")))


def begin_session(said: str = "", **parts: str) -> AdapterSession:
    session = AdapterSession()
    session.handle_event(RunBegan(said), **parts)
    return session


# ── Text ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.turn")
def test_a_turn_has_the_message_and_everything_that_follows() -> None:
    session = begin_session("Find TODOs")
    session.handle_event(TextPiece("Searching"))
    session.handle_event(TextPiece("..."))
    session.handle_event(SegmentEnded())
    session.handle_event(DONE)
    assert session.summaries == [
        "user-text Find TODOs",
        "turn-start",
        "text Searching...",
        "turn-end completed",
    ]
    user, *agents = session.envelopes
    assert user.turn == ""
    assert {one.turn for one in agents} == {derive_id(SESSION, "turn", "run", 0)}


@pytest.mark.req("adapter.ids")
def test_ids_are_derived_from_session_run_and_position() -> None:
    session = begin_session("hi")
    turn = derive_id(SESSION, "turn", "run", 0)
    assert [e.id for e in session.envelopes] == [derive_id(SESSION, turn, n) for n in range(2)]


@pytest.mark.req("adapter.text")
def test_text_and_reasoning_are_separate_envelopes() -> None:
    session = begin_session()
    session.handle_event(TextPiece("\n\nhm", thinking=True))
    assert session.handle_event(TextPiece(" ", thinking=True)) == []
    assert session.handle_event(TextPiece("\nWell,\n")) == session.envelopes[-1:]
    session.handle_event(TextPiece("\n\nno.\n\n"))
    session.handle_event(DONE)
    assert session.summaries[1:-1] == ["thinking hm ".rstrip(), "text Well,\n\n\nno."]


@pytest.mark.req("adapter.text")
@pytest.mark.parametrize(
    "next_one",
    [
        make_tools_called(make_call("k")),
        make_tool_returned("k"),
        QuestionsAsked("a", (SURE,)),
        RunSteered("x"),
        DONE,
        KILLED,
    ],
)
def test_text_is_written_before_the_event_that_follows_it(next_one: object) -> None:
    session = begin_session()
    session.handle_event(TextPiece("Wait"))
    assert isinstance(session.handle_event(next_one)[0].ev, TextEvent)  # type: ignore[arg-type]


@pytest.mark.req("adapter.text")
def test_blank_segments_are_not_written() -> None:
    session = begin_session()
    for piece in (TextPiece("\n \n"), TextPiece("\n", thinking=True), TextPiece("  ")):
        session.handle_event(piece)
    session.handle_event(DONE)
    assert session.summaries == ["turn-start", "turn-end completed"]


@pytest.mark.req("adapter.text.early")
def test_long_and_idle_texts_are_written_paragraph_by_paragraph() -> None:
    session = begin_session()
    paragraph = "word " * 200 + "\n\n"
    for _ in range(5):
        session.handle_event(TextPiece(paragraph))
    assert [len(e.ev.text) for e in session.envelopes if isinstance(e.ev, TextEvent)] == [
        len(paragraph * 5) - 2
    ]
    session.handle_event(TextPiece("one\n\ntwo"))
    assert [e.ev for e in session.check_envelopes(session.adapter.flush_idle_text(5000))] == [
        TextEvent(text="one")
    ]
    assert session.check_envelopes(session.adapter.flush_idle_text(6000)) == []
    session.handle_event(DONE)
    assert session.summaries[-2:] == ["text two", "turn-end completed"]


# ── Tools ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.tools")
def test_parallel_calls_end_as_they_finish_with_their_results() -> None:
    session = begin_session()
    session.handle_event(
        make_tools_called(
            make_call("k1", "bash", command="ls -l"), make_call("k2", "read", path="/a")
        )
    )
    session.handle_event(make_tool_returned("k2", "no such file", is_error=True, duration_ms=7))
    session.handle_event(make_tool_returned("k1", "a\n"))
    session.handle_event(StepEnded())
    session.handle_event(DONE)
    starts = [e.ev for e in session.envelopes if isinstance(e.ev, ToolCallStart)]
    assert starts[0] == ToolCallStart(
        call="k1",
        name="bash",
        title="Run `ls -l`",
        description="Run `ls -l`",
        args={"command": "ls -l"},
    )
    assert [e.ev for e in session.envelopes if isinstance(e.ev, ToolCallEnd)] == [
        ToolCallEnd(call="k2", result="no such file", is_error=True, duration_ms=7),
        ToolCallEnd(call="k1", result="a\n", duration_ms=20),
    ]


@pytest.mark.req("adapter.tools.once")
def test_calls_with_repeated_ids_get_unique_names() -> None:
    session = begin_session()
    for _ in range(3):
        session.handle_event(make_tools_called(make_call("call_0")))
        session.handle_event(make_tools_called(make_call("call_0")))
        session.handle_event(make_tool_returned("call_0"))
        session.handle_event(make_tool_returned("call_0"))
    assert [w for w in session.summaries if "start call" in w] == [
        "tool-call-start call_0",
        "tool-call-start call_0~2",
        "tool-call-start call_0~3",
    ]


@pytest.mark.req("adapter.missed")
def test_a_call_with_a_lost_result_ends_with_its_step() -> None:
    session = begin_session()
    session.handle_event(make_tools_called(make_call("k1"), make_call("k2")))
    session.handle_event(make_tool_returned("k2"))
    session.handle_event(StepEnded(), missed=3)
    assert session.summaries[3:] == [
        "tool-call-end k2",
        "service **Note:** up to 3 events may be missing here.",
        "tool-call-end k1",
    ]


# ── Usage ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.usage")
def test_usage_is_on_the_text_of_its_model_call() -> None:
    session = AdapterSession(EnvelopeAdapter(SESSION, context_window=4096))
    session.handle_event(RunBegan())
    session.handle_event(TextPiece("Hi"))
    assert session.handle_event(SegmentEnded()) == []
    (said,) = session.handle_event(TokensUsed(100, 7, cached=60))
    assert said.usage == EnvelopeUsage(
        input_tokens=40, output_tokens=7, cache_read_input_tokens=60, context_window=4096
    )
    (end,) = session.handle_event(DONE)
    assert not end.usage


@pytest.mark.req("adapter.usage")
def test_usage_of_tool_calls_is_on_the_next_text_or_the_end() -> None:
    session = begin_session()
    session.handle_event(make_tools_called(make_call("k")))
    session.handle_event(make_tool_returned("k"))
    session.handle_event(StepEnded())
    assert session.handle_event(TokensUsed(10, 1)) == []
    session.handle_event(make_tools_called(make_call("l")))
    assert session.envelopes[-1].usage == EnvelopeUsage(input_tokens=10, output_tokens=1)
    session.handle_event(make_tool_returned("l"))
    session.handle_event(TokensUsed(20, 2, cached=99))
    (end,) = session.handle_event(RunEnded(EndReason.MAX_ITERATIONS))[1:]
    assert end.usage == EnvelopeUsage(input_tokens=0, output_tokens=2, cache_read_input_tokens=20)


@pytest.mark.req("adapter.usage")
def test_usage_waits_for_text_of_the_same_agent() -> None:
    session = begin_session()
    session.handle_event(make_tools_called(LATER))
    session.handle_event(make_tool_returned("K", STARTED))
    session.handle_event(TokensUsed(10, 1))
    inside = make_parent("run", "K")
    session.handle_event(TextPiece("Looking"), "child", **inside)
    session.handle_event(make_tools_called(make_call("k")), "child", **inside)
    session.handle_event(TokensUsed(99, 9), "child", **inside)
    session.handle_event(TextPiece("Done."))
    session.handle_event(DONE)
    used = {str(e.ev): e.usage for e in session.envelopes if e.usage}
    assert used == {str(TextEvent(text="Done.")): EnvelopeUsage(input_tokens=10, output_tokens=1)}


# ── Ends ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (RunEnded(EndReason.COMPLETED), ["turn-end completed"]),
        (RunEnded(EndReason.UNKNOWN), ["turn-end completed"]),
        (RunEnded(EndReason.CANCELLED), ["turn-end cancelled"]),
        (RunEnded(EndReason.ERROR, "no model"), ["service **Error:** no model", "turn-end failed"]),
        (
            RunEnded(EndReason.UNKNOWN, "no model"),
            ["service **Error:** no model", "turn-end failed"],
        ),
        (
            RunEnded(EndReason.MAX_ITERATIONS),
            ["service The agent used up the steps it may take.", "turn-end failed"],
        ),
        (
            RunEnded(EndReason.NO_ACTION),
            ["service The model returned neither text nor a call.", "turn-end failed"],
        ),
    ],
)
@pytest.mark.req("adapter.ends")
def test_a_turn_ends_with_the_status_of_its_run(ended: RunEnded, told: list[str]) -> None:
    session = begin_session()
    session.handle_event(ended)
    assert session.summaries[1:] == told


@pytest.mark.req("adapter.kill")
def test_a_stopped_turn_is_cancelled_however_it_ends() -> None:
    for end in (RunEnded(EndReason.UNKNOWN), RunEnded(EndReason.ERROR, "cut off"), None):
        session = begin_session()
        session.handle_event(TextPiece("half a w"))
        session.adapter.mark_killed()
        if end is None:
            session.check_envelopes(session.adapter.close_lost_turn(5000))
        else:
            session.handle_event(end)
        assert session.summaries == ["turn-start", "text half a w", "turn-end cancelled"]


@pytest.mark.req("adapter.kill")
def test_stopping_without_an_open_turn_does_nothing() -> None:
    session = AdapterSession()
    session.adapter.mark_killed()
    session.handle_event(RunBegan())
    session.handle_event(DONE)
    assert session.summaries == ["turn-start", "turn-end completed"]


@pytest.mark.req("adapter.kill")
def test_a_kill_closes_the_calls_of_tasks_then_tasks_then_the_turn() -> None:
    session = begin_session()
    session.handle_event(TextPiece("Let me see"))
    session.handle_event(
        make_tools_called(make_delegate_call("K", {"agent": "scout", "message": "look"}))
    )
    inside = make_parent("run", "K")
    session.handle_event(RunBegan(), "child", **inside)
    session.handle_event(TextPiece("Looking"), "child", **inside)
    session.handle_event(make_tools_called(make_call("a"), make_call("b")), "child", **inside)
    session.handle_event(make_tool_returned("a"), "child", **inside)
    session.handle_event(KILLED)
    session.handle_event(KILLED, "child", **inside)
    assert session.summaries == [
        "turn-start",
        "text Let me see",
        "tool-call-start K:0",
        "start[A] scout — look",
        "text[A] Looking",
        "tool-call-start[A] a",
        "tool-call-start[A] b",
        "tool-call-end[A] a",
        "tool-call-end[A] b",
        "stop[A]",
        "tool-call-end K:0",
        "turn-end cancelled",
    ]
    interrupted = session.envelopes[8].ev
    assert isinstance(interrupted, ToolCallEnd)
    assert (interrupted.result, interrupted.is_error) == ("interrupted", True)


@pytest.mark.req("adapter.lost")
def test_a_lost_connection_fails_the_turn_and_later_events_open_another() -> None:
    session = begin_session()
    session.handle_event(
        make_tools_called(make_call("k"), make_delegate_call("K", {"message": "dig"}))
    )
    session.handle_event(TextPiece("Dig"), "child", **make_parent("run", "K"))
    session.check_envelopes(session.adapter.close_lost_turn(5000))
    assert session.summaries[4:] == [
        "text[A] Dig",
        f"service {CONNECTION_LOST_TEXT}",
        "stop[A]",
        "tool-call-end k",
        "tool-call-end K:0",
        "turn-end failed",
    ]
    assert session.handle_event(DONE, "child", **make_parent("run", "K")) == []
    session.handle_event(TextPiece("still here"))
    session.handle_event(DONE)
    assert session.summaries[10:] == ["turn-start", "text still here", "turn-end completed"]
    assert session.check_envelopes(session.adapter.close_lost_turn(9000)) == []


# ── People ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.user")
def test_messages_from_elsewhere_are_written_and_our_own_are_not() -> None:
    session = AdapterSession()
    session.handle_event(RunBegan(""))
    session.handle_event(RunSteered("left"))
    session.handle_event(DONE)
    session.handle_event(RunBegan("Hello"), "other")
    assert session.summaries == [
        "turn-start",
        "user-text left",
        "turn-end completed",
        "user-text Hello",
        "turn-start",
    ]


@pytest.mark.req("adapter.user")
def test_a_run_that_continues_after_its_end_is_another_turn() -> None:
    session = begin_session()
    session.handle_event(TextPiece("one"))
    session.handle_event(DONE)
    assert session.handle_event(TextPiece("not heard")) == []
    session.adapter.reopen_run("run")
    session.handle_event(RunSteered("and?"))
    session.handle_event(TextPiece("two"))
    session.handle_event(DONE)
    assert session.summaries[-6:] == [
        "text one",
        "turn-end completed",
        "turn-start",
        "user-text and?",
        "text two",
        "turn-end completed",
    ]


@pytest.mark.req("adapter.asks")
def test_a_question_is_the_call_that_asks_until_it_is_answered() -> None:
    session = begin_session()
    session.handle_event(
        make_tools_called(make_call("k", "ask_user", questions=[{"question": "Really?"}]))
    )
    assert session.handle_event(QuestionsAsked("ask-1", (SURE,)), agent="crab", sender="bo") == []
    (ask,) = session.adapter.pending_asks
    assert (ask.id, ask.call, ask.agent, ask.sender) == ("ask-1", "k", "crab", "bo")
    assert ask.questions == (SURE,)
    assert session.check_envelopes(session.adapter.close_ask("ask-1", 2000)) == []
    assert session.adapter.pending_asks == ()
    session.handle_event(make_tool_returned("k", "Yes"))
    assert session.summaries[1:] == ["tool-call-start k", "tool-call-end k"]


@pytest.mark.req("adapter.asks")
def test_a_question_about_a_call_is_shown_as_a_call_of_its_own() -> None:
    session = begin_session()
    session.handle_event(make_tools_called(make_call("k")))
    (start,) = session.handle_event(QuestionsAsked("ask-1", (SURE,)))
    assert start.ev == ToolCallStart(
        call="ask-1",
        name="ask-user",
        title="Sure",
        description=start.ev.description,  # type: ignore[union-attr]
        args={
            "questions": [
                {
                    "question": "Really?",
                    "header": "Sure",
                    "options": [
                        {"label": "Yes", "description": ""},
                        {"label": "No", "description": "never"},
                    ],
                    "multiSelect": False,
                }
            ]
        },
    )
    # If it is received again, it is the same question.
    assert session.handle_event(QuestionsAsked("ask-1", (SURE,))) == []
    session.check_envelopes(session.adapter.close_ask("ask-1", 2000))
    assert session.check_envelopes(session.adapter.close_ask("ask-1", 2000)) == []
    session.handle_event(make_tool_returned("k"))
    assert session.summaries[2:] == [
        "tool-call-start ask-1",
        "tool-call-end ask-1",
        "tool-call-end k",
    ]


@pytest.mark.req("adapter.asks")
@pytest.mark.parametrize("end", [StepEnded(), DONE, KILLED])
def test_an_unanswered_question_ends_with_its_step_or_its_turn(end: object) -> None:
    session = begin_session()
    session.handle_event(make_tools_called(make_call("k")))
    session.handle_event(QuestionsAsked("ask-1", (SURE,)))
    session.handle_event(end)  # type: ignore[arg-type]
    assert session.adapter.pending_asks == ()
    assert session.order.calls == {}


# ── Guests ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.guests")
def test_a_guest_speaks_under_a_name_of_its_own_and_in_no_call() -> None:
    session = begin_session("And you?", guest="twin")
    session.handle_event(TextPiece("Me too."), guest="twin")
    session.handle_event(TokensUsed(5, 1), guest="twin")
    session.handle_event(DONE, guest="twin")
    assert session.summaries == [
        "user-text And you?",
        "turn-start",
        "start[A] twin",
        "text[A] Me too.",
        "stop[A]",
        "turn-end completed",
    ]
    assert session.envelopes[3].subagent == derive_id(SESSION, "guest", "twin")
    assert session.envelopes[3].usage


@pytest.mark.req("adapter.guests")
def test_the_pending_text_of_a_killed_guest_is_dropped() -> None:
    session = begin_session(guest="twin")
    session.handle_event(TextPiece("To begin w"), guest="twin")
    session.handle_event(KILLED, guest="twin")
    assert session.summaries == ["turn-start", "start[A] twin", "stop[A]", "turn-end cancelled"]


@pytest.mark.req("adapter.compat")
def test_readers_that_do_not_show_names_are_told_who_the_guest_is() -> None:
    session = AdapterSession(is_compat=True)
    session.handle_event(RunBegan(), guest="tw*in")
    session.handle_event(TextPiece("Me too."), guest="tw*in")
    session.handle_event(DONE, guest="tw*in")
    assert session.summaries[1:4] == [
        r"service **tw\*in** (guest)",
        "start[A] tw*in",
        "text[A] Me too.",
    ]


@pytest.mark.req("adapter.compat")
def test_readers_that_draw_tools_by_name_get_their_names() -> None:
    session = AdapterSession(is_compat=True)
    session.handle_event(RunBegan())
    session.handle_event(
        make_tools_called(
            make_call("k", "read", path="/a"), make_delegate_call("K", {"message": "dig"})
        )
    )
    starts = [e.ev for e in session.envelopes if isinstance(e.ev, ToolCallStart)]
    assert [start.name for start in starts] == ["Read", "Agent"]
    assert starts[0].args == {"path": "/a", "file_path": "/a"}
    (ask,) = session.handle_event(QuestionsAsked("a", (SURE,)))
    assert isinstance(ask.ev, ToolCallStart)
    assert ask.ev.name == "AskUserQuestion"


@pytest.mark.req("adapter.compat.usage")
def test_readers_that_expect_usage_outside_of_turns_find_it_there() -> None:
    session = AdapterSession(is_compat=True)
    session.handle_event(RunBegan())
    session.handle_event(TextPiece("Hello."))
    session.handle_event(SegmentEnded())
    session.handle_event(TokensUsed(100, 7, cached=40))
    session.handle_event(make_tools_called(make_call("k")))
    session.handle_event(make_tool_returned("k"))
    session.handle_event(TokensUsed(120, 3))
    session.handle_event(DONE)
    assert session.summaries == [
        "turn-start",
        "text Hello.",
        "service",
        "tool-call-start k",
        "tool-call-end k",
        "service",
        "turn-end completed",
    ]
    bare = [e for e in session.envelopes if e.is_bare_usage]
    assert [e.usage for e in bare] == [
        EnvelopeUsage(input_tokens=60, output_tokens=7, cache_read_input_tokens=40),
        EnvelopeUsage(input_tokens=120, output_tokens=3),
    ]
    assert all(not e.is_ignored for e in bare)
    assert all(e.usage is UNSET for e in session.envelopes if e not in bare)
    with pytest.raises(EnvelopeError, match="turn is missing"):
        encode_envelope(bare[0])
    # An adapter that continues from the journal numbers the next envelope as if nothing had
    # happened.
    recovered = EnvelopeAdapter(SESSION, is_compat=True, history=session.envelopes[:3])
    received = ReceivedEvent(run="run", event=make_tools_called(make_call("k")), at=1050)
    assert recovered.handle_event(received) == session.envelopes[3:4]


@pytest.mark.req("adapter.compat.output")
def test_readers_that_show_no_results_get_them_as_reasoning() -> None:
    session = AdapterSession(EnvelopeAdapter(SESSION, shows_output=True))
    session.handle_event(RunBegan())
    session.handle_event(make_tools_called(make_call("a"), make_call("b"), make_call("c")))
    session.handle_event(make_tool_returned("a", "one\n```\ntwo\n"))
    session.handle_event(make_tool_returned("b", ""))
    session.handle_event(KILLED)
    assert session.summaries == [
        "turn-start",
        "tool-call-start a",
        "tool-call-start b",
        "tool-call-start c",
        "thinking ````\none\n```\ntwo\n````",
        "tool-call-end a",
        "tool-call-end b",
        "tool-call-end c",
        "turn-end cancelled",
    ]
    (end,) = [e.ev for e in session.envelopes if getattr(e.ev, "call", "") == "a"][1:]
    assert isinstance(end, ToolCallEnd)
    assert end.result == "one\n```\ntwo\n"


# ── Delegation ──────────────────────────────────────────────────────────────────────────────────

TWO = make_delegate_call("K", {"agent": "scout", "message": "# look\nhere"}, {"message": "dig"})


@pytest.mark.req("adapter.delegation")
def test_each_task_is_a_call_with_an_agent_in_it() -> None:
    session = begin_session()
    session.handle_event(make_tools_called(TWO))
    for place, run in enumerate(("scout-run", "worker-run")):
        session.handle_event(RunBegan("look"), run, **make_parent("run", "K", place))
        session.handle_event(TextPiece(f"{run} says"), run, **make_parent("run", "K", place))
    session.handle_event(DONE, "worker-run", **make_parent("run", "K", 1))
    session.handle_event(DONE, "scout-run", **make_parent("run", "K"))
    session.handle_event(make_tool_returned("K", "[]"))
    session.handle_event(DONE)
    assert session.summaries == [
        "turn-start",
        "tool-call-start K:0",
        "start[A] scout — # look",
        "tool-call-start K:1",
        "start[B] worker — dig",
        "text[B] worker-run says",
        "stop[B]",
        "tool-call-end K:1",
        "text[A] scout-run says",
        "stop[A]",
        "tool-call-end K:0",
        "turn-end completed",
    ]
    task, start = session.envelopes[1:3]
    assert task.ev == ToolCallStart(
        call="K:0",
        name="task",
        title="scout — # look",
        description="scout — # look here",
        args={
            "description": "# look",
            "prompt": "# look\nhere",
            "subagent_type": "scout",
            "sessionSubagent": start.subagent,
        },
    )
    end = session.envelopes[-2].ev
    assert isinstance(end, ToolCallEnd)
    assert end.result == "scout-run says"


@pytest.mark.req("adapter.delegation")
def test_tasks_without_events_end_with_the_outcome_in_the_call() -> None:
    session = begin_session()
    session.handle_event(make_tools_called(TWO))
    results = [{"agent": "scout", "result": "found", "error": None}, {"agent": "w", "error": "no"}]
    session.handle_event(make_tool_returned("K", json.dumps(results)))
    ends = [e.ev for e in session.envelopes if isinstance(e.ev, ToolCallEnd)]
    assert [(e.call, e.result, e.is_error) for e in ends] == [
        ("K:0", "found", False),
        ("K:1", "no", True),
    ]


@pytest.mark.req("adapter.delegation")
@pytest.mark.parametrize(
    ("ended", "result", "is_error"),
    [
        (KILLED, "it was cancelled", True),
        (RunEnded(EndReason.ERROR, "no model"), "no model", True),
        (RunEnded(EndReason.NO_ACTION), "", False),
    ],
)
def test_a_task_that_fails_says_so(ended: RunEnded, result: str, is_error: bool) -> None:
    session = begin_session()
    session.handle_event(make_tools_called(make_delegate_call("K", {"message": "dig"})))
    *_, end = session.handle_event(ended, "child", **make_parent("run", "K"))
    assert isinstance(end.ev, ToolCallEnd)
    assert (end.ev.result, end.ev.is_error) == (result, is_error)


@pytest.mark.req("adapter.delegation")
def test_text_of_an_ended_task_is_not_written() -> None:
    session = begin_session()
    session.handle_event(make_tools_called(make_delegate_call("K", {"message": "dig"})))
    session.handle_event(make_tool_returned("K", "refused", is_error=True))
    inside = make_parent("run", "K")
    assert session.handle_event(TextPiece("late"), "child", **inside) == []
    assert session.handle_event(make_tools_called(make_call("k")), "child", **inside) == []
    assert session.handle_event(DONE, "child", **inside) == []
    session.handle_event(DONE)
    assert session.summaries[-1] == "turn-end completed"


@pytest.mark.req("adapter.delegation.nested")
def test_tasks_within_tasks_each_have_an_agent_of_their_own() -> None:
    session = begin_session()
    run, depth = "run", 4
    for level in range(depth):
        parts = make_parent(f"run{level - 1}" if level > 1 else "run", "K") if level else {}
        run = f"run{level}" if level else "run"
        session.handle_event(
            make_tools_called(make_delegate_call("K", {"message": f"level {level}"})), run, **parts
        )
    session.handle_event(KILLED)
    assert session.summaries == [
        "turn-start",
        "tool-call-start K:0",
        "start[A] worker — level 0",
        "tool-call-start[A] K:0~2",
        "start[B] worker — level 1",
        "tool-call-start[B] K:0~3",
        "start[C] worker — level 2",
        "tool-call-start[C] K:0~4",
        "start[D] worker — level 3",
        "stop[D]",
        "tool-call-end[C] K:0~4",
        "stop[C]",
        "tool-call-end[B] K:0~3",
        "stop[B]",
        "tool-call-end[A] K:0~2",
        "stop[A]",
        "tool-call-end K:0",
        "turn-end cancelled",
    ]


@pytest.mark.req("adapter.orphans")
def test_events_of_a_task_wait_for_its_call() -> None:
    session = begin_session()
    inner = make_parent("child", "L")
    assert session.handle_event(TextPiece("deep"), "grandchild", **inner) == []
    assert session.handle_event(DONE, "grandchild", **inner) == []
    outer = make_parent("run", "K")
    assert session.handle_event(TextPiece("early"), "child", **outer) == []
    assert (
        session.handle_event(
            make_tools_called(make_delegate_call("L", {"message": "dig"})), "child", **outer
        )
        == []
    )
    assert session.adapter.statistics()["orphans"] == 4
    session.handle_event(make_tools_called(make_delegate_call("K", {"message": "look"})))
    assert session.adapter.statistics()["orphans"] == 0
    assert session.summaries == [
        "turn-start",
        "tool-call-start K:0",
        "start[A] worker — look",
        "text[A] early",
        "tool-call-start[A] L:0",
        "start[B] worker — dig",
        "text[B] deep",
        "stop[B]",
        "tool-call-end[A] L:0",
    ]


@pytest.mark.req("adapter.orphans")
def test_waiting_events_are_bounded_and_the_oldest_are_dropped() -> None:
    session = begin_session()
    for number in range(5000):
        session.handle_event(
            TextPiece("x"), f"child-{number}", **make_parent("missing", str(number))
        )
    assert session.adapter.statistics()["orphans"] == 4096
    for number in range(8):
        session.handle_event(
            TextPiece("x" * 1_000_000), "big", **make_parent("missing", f"big {number}")
        )
    assert session.adapter.statistics()["orphans"] < 4096
    session.handle_event(TextPiece("x" * 5_000_000), "huge", **make_parent("missing", "huge"))
    assert session.adapter.statistics() == {
        "turns_waiting": 0,
        "orphans": 0,
        "background": 0,
        "dropped": 5009,
    }


@pytest.mark.req("adapter.orphans")
def test_there_is_room_again_once_waiting_events_are_written() -> None:
    session = begin_session()
    for number in range(3):
        key = f"K{number}"
        session.handle_event(
            TextPiece("x" * 3_000_000), f"child-{number}", **make_parent("run", key)
        )
        session.handle_event(make_tools_called(make_delegate_call(key, {"message": "look"})))
    assert session.adapter.statistics()["dropped"] == 0


@pytest.mark.req("adapter.orphans")
def test_events_that_wait_in_vain_are_dropped_with_the_turn() -> None:
    session = begin_session()
    session.handle_event(TextPiece("x"), "child", **make_parent("run", "never called"))
    session.handle_event(DONE)
    assert session.adapter.statistics()["orphans"] == 0
    assert session.handle_event(TextPiece("x"), "child", **make_parent("run", "never called")) == []


# ── In the background ───────────────────────────────────────────────────────────────────────────

LATER = make_delegate_call("K", {"agent": "scout", "message": "look"}, background=True)
STARTED = json.dumps([{"agent": "scout", "task_id": "delegate:1"}])


@pytest.mark.req("adapter.background")
def test_a_background_task_ends_its_call_at_once_and_continues() -> None:
    session = begin_session()
    session.handle_event(make_tools_called(LATER))
    session.handle_event(make_tool_returned("K", STARTED))
    session.handle_event(StepEnded())
    session.handle_event(TextPiece("On it."), "child", **make_parent("run", "K"))
    session.handle_event(DONE, "child", **make_parent("run", "K"))
    session.handle_event(DONE)
    assert session.summaries[1:] == [
        "tool-call-start K:0",
        "start[A] scout — look",
        "tool-call-end K:0",
        "text[A] On it.",
        "stop[A]",
        "turn-end completed",
    ]


@pytest.mark.req("adapter.background")
def test_a_refused_background_task_stops_at_once() -> None:
    session = begin_session()
    session.handle_event(make_tools_called(LATER))
    session.handle_event(make_tool_returned("K", "too many", is_error=True))
    assert session.summaries[-2:] == ["stop[A]", "tool-call-end K:0"]
    session.handle_event(DONE)
    assert session.adapter.statistics()["background"] == 0


@pytest.mark.req("adapter.background")
@pytest.mark.parametrize(
    ("ended", "report"),
    [
        (DONE, "**scout — look** has finished.\n\nFound it."),
        (KILLED, "**scout — look** was cancelled."),
        (RunEnded(EndReason.ERROR, "no model"), "**scout — look** failed: no model"),
    ],
)
@pytest.mark.parametrize("heard_before", [True, False])
@pytest.mark.parametrize("is_busy", [True, False])
def test_a_task_that_outlives_its_turn_is_reported_in_the_next_or_its_own_turn(
    ended: RunEnded, report: str, heard_before: bool, is_busy: bool
) -> None:
    session = begin_session()
    inside = make_parent("run", "K")
    session.handle_event(make_tools_called(LATER))
    session.handle_event(make_tool_returned("K", STARTED))
    if heard_before:
        session.handle_event(TextPiece("Looking"), "child", **inside)
    session.handle_event(DONE)
    assert session.summaries[-2:] == ["stop[A]", "turn-end completed"]
    if is_busy:
        session.handle_event(RunBegan("next"), "other")
    session.handle_event(TextPiece("hm", thinking=True), "child", **inside)
    session.handle_event(TextPiece("Found "), "child", **inside)
    session.handle_event(TextPiece("it."), "child", **inside)
    session.handle_event(
        TextPiece("grandchildren are not told of"), "below", **make_parent("child", "L")
    )
    found = summarize_envelopes(session.handle_event(ended, "child", **inside))
    inside_of = ([], []) if is_busy else (["turn-start"], ["turn-end completed"])
    assert found == [*inside_of[0], f"service {report}", *inside_of[1]]
    assert session.handle_event(ended, "child", **inside) == []


@pytest.mark.req("adapter.background")
@pytest.mark.parametrize("heard_before", [True, False])
def test_a_task_that_outlives_its_parent_task_is_reported_too(heard_before: bool) -> None:
    session = begin_session()
    outer, inner = make_parent("run", "L"), make_parent("child", "K")
    session.handle_event(make_tools_called(make_delegate_call("L", {"message": "dig"})))
    session.handle_event(make_tools_called(LATER), "child", **outer)
    session.handle_event(make_tool_returned("K", STARTED), "child", **outer)
    if heard_before:
        session.handle_event(TextPiece("Looking"), "grandchild", **inner)
    session.handle_event(DONE, "child", **outer)
    assert session.summaries[-3:] == ["stop[B]", "stop[A]", "tool-call-end L:0"]
    session.handle_event(TextPiece("Found it."), "grandchild", **inner)
    session.handle_event(make_tool_returned("L"))
    session.handle_event(DONE)
    session.handle_event(DONE, "grandchild", **inner)
    assert session.summaries[-2] == "service **scout — look** has finished.\n\nFound it."


# ── Beside the turns ────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.compaction")
def test_a_compaction_is_written_in_its_own_turn_or_the_open_one() -> None:
    session = AdapterSession()
    session.handle_event(ConversationCompacted("The beach."), "")
    assert session.summaries == [
        "turn-start",
        "service **Compacted:** The beach.",
        "turn-end completed",
    ]
    session.handle_event(RunBegan())
    session.handle_event(ConversationCompacted(""), "")
    assert session.summaries[3:] == ["turn-start", "service **Compacted**"]


@pytest.mark.req("adapter.files")
def test_a_file_is_shown_with_the_agent_that_sent_it() -> None:
    file = FileEvent(ref="up_1", name="a.png", size=3)
    session = AdapterSession()
    session.check_envelopes(session.adapter.write_file(file, 5))
    assert session.summaries == ["turn-start", "file", "turn-end completed"]
    assert session.check_envelopes(session.adapter.write_file(file, 6)) == []
    session.handle_event(RunBegan())
    session.handle_event(make_tools_called(make_delegate_call("K", {"message": "draw"})))
    child = make_parent("run", "K")
    session.handle_event(TextPiece("Drawn.\n\nIt shows a "), "child", **child)
    said, sent = session.check_envelopes(session.adapter.write_file(file, 7, run="child"))
    assert (said.ev, sent.ev, said.subagent) == (TextEvent(text="Drawn."), file, sent.subagent)
    assert sent.subagent
    session.handle_event(TextPiece("beach."), "child", **child)
    session.handle_event(DONE, "child", **child)
    assert "text[A] It shows a beach." in session.summaries, "a sentence stays whole"
    (sent,) = session.check_envelopes(session.adapter.write_file(file, 8, run="missing"))
    assert sent.subagent == ""


@pytest.mark.req("adapter.note")
def test_a_notice_is_written_once() -> None:
    session = AdapterSession()
    session.check_envelopes(session.adapter.write_notice("queued", 5))
    assert session.check_envelopes(session.adapter.write_notice("queued", 5)) == []
    session.handle_event(RunBegan())
    session.check_envelopes(session.adapter.write_notice("queued", 6))
    assert session.summaries == [
        "turn-start",
        "service queued",
        "turn-end completed",
        "turn-start",
        "service queued",
    ]


# ── Oddities ────────────────────────────────────────────────────────────────────────────────────

MEGABYTE = 1_000_000


@pytest.mark.req("adapter.text.size")
@pytest.mark.parametrize("letter", ["x", "\x00", '"', "🦀", "`"])
@pytest.mark.slow
def test_a_megabyte_of_text_anywhere_fits_into_envelopes(letter: str) -> None:
    session = AdapterSession()
    big = letter * MEGABYTE
    session.handle_event(RunBegan(big))
    session.handle_event(TextPiece(big))
    session.handle_event(TextPiece(big, thinking=True))
    session.handle_event(
        make_tools_called(
            ToolCallRequest("k", big, big),
            ToolCallRequest(big, "bash", json.dumps({"command": big})),
        )
    )
    session.handle_event(make_tools_called(make_delegate_call("K", {"message": big, "agent": big})))
    session.handle_event(make_tool_returned("k", big))
    session.handle_event(make_tool_returned(big, big, is_error=True))
    session.handle_event(QuestionsAsked(big, (AgentQuestion(big, big, (AnswerOption(big, big),)),)))
    session.handle_event(RunSteered(big))
    session.handle_event(RunEnded(EndReason.ERROR, big))
    assert session.summaries[-1] == "turn-end failed"
    texts = [
        e.ev.text for e in session.envelopes if e.role == "user" and isinstance(e.ev, TextEvent)
    ]
    assert "".join(texts) == 2 * big


@pytest.mark.req("adapter.tools.arguments")
def test_arguments_that_are_not_json_or_unicode_are_still_written() -> None:
    session = begin_session()
    for number, text in enumerate(['{"a": NaN}', '{"a": "\\udc00"}', "\ud800", "[" * 9999]):
        session.handle_event(make_tools_called(ToolCallRequest(f"k{number}", "x\ud800", text)))
    session.handle_event(DONE)
    args = [e.ev.args for e in session.envelopes if isinstance(e.ev, ToolCallStart)]
    assert args == [{"raw": '{"a": NaN}'}, {"a": "\ufffd"}, {"raw": "?"}, {"raw": "[" * 9999}]


# ── One after the other ─────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.waiting")
def test_a_turn_accepted_during_another_follows_it() -> None:
    session = AdapterSession()
    session.handle_event(RunBegan("one"), "r1", is_streamed=True)
    session.handle_event(RunBegan("two"), "r2", is_streamed=True)
    session.handle_event(TextPiece("first"), "r1", is_streamed=True)
    session.handle_event(DONE, "r1", is_streamed=True)
    session.handle_event(TextPiece("second"), "r2", is_streamed=True)
    session.handle_event(DONE, "r2", is_streamed=True)
    assert session.summaries == [
        "user-text one",
        "turn-start",
        "text first",
        "turn-end completed",
        "user-text two",
        "turn-start",
        "text second",
        "turn-end completed",
    ]


@pytest.mark.req("adapter.waiting")
def test_the_feed_may_be_ahead_of_a_stream_by_a_turn() -> None:
    session = AdapterSession()
    session.handle_event(RunBegan("one"), "r1", is_streamed=True)
    session.handle_event(RunBegan("two"), "r2")
    session.handle_event(TextPiece("second"), "r2")
    session.handle_event(DONE, "r2")
    session.handle_event(TextPiece("first"), "r1", is_streamed=True)
    session.handle_event(DONE, "r1", is_streamed=True)
    assert [word for word in session.summaries if word.startswith("text")] == [
        "text first",
        "text second",
    ]
    assert "turn-end failed" not in session.summaries


@pytest.mark.req("adapter.missed")
def test_a_turn_whose_end_got_lost_is_closed_when_the_next_begins() -> None:
    session = begin_session("one")
    session.handle_event(RunBegan("two"), "other")
    assert session.summaries[2:] == [
        f"service {END_UNSEEN_TEXT}",
        "turn-end failed",
        "user-text two",
        "turn-start",
    ]
    assert session.handle_event(TextPiece("late")) == []


@pytest.mark.req("adapter.waiting")
def test_what_waits_for_a_turn_that_never_ends_is_bounded() -> None:
    session = AdapterSession()
    session.handle_event(RunBegan("one"), "r1", is_streamed=True)
    session.handle_event(RunBegan("two"), "r2", is_streamed=True)
    for _ in range(5000):
        session.handle_event(TextPiece("x"), "r2", is_streamed=True)
    session.handle_event(DONE, "r2", is_streamed=True)
    assert session.summaries[2:6] == [
        f"service {END_UNSEEN_TEXT}",
        "turn-end failed",
        "user-text two",
        "turn-start",
    ]
    texts = [e.ev.text for e in session.envelopes if isinstance(e.ev, TextEvent) and e.turn]
    assert "".join(texts) == "x" * 5000


@pytest.mark.req("adapter.sources")
def test_a_run_on_both_stream_and_feed_is_written_once() -> None:
    for first in (True, False):
        session = AdapterSession()
        for what in (RunBegan("hi"), TextPiece("yo"), SegmentEnded(), DONE):
            session.handle_event(what, is_streamed=first)
            session.handle_event(what, is_streamed=not first)
        assert session.summaries == ["user-text hi", "turn-start", "text yo", "turn-end completed"]


@pytest.mark.req("adapter.resumed")
def test_a_run_first_seen_in_the_middle_is_a_turn_from_there_on() -> None:
    session = AdapterSession()
    assert session.handle_event(make_tool_returned("k")) == []
    assert session.handle_event(StepEnded()) == []
    session.handle_event(TextPiece("and so"))
    session.handle_event(DONE)
    assert session.summaries == ["turn-start", "text and so", "turn-end completed"]
    assert session.handle_event(DONE, "met at its end") == []


@pytest.mark.req("adapter.ends")
def test_a_run_that_failed_before_it_began_says_so() -> None:
    session = AdapterSession()
    session.handle_event(RunEnded(EndReason.ERROR, "no such guest"))
    assert session.summaries == [
        "turn-start",
        "service **Error:** no such guest",
        "turn-end failed",
    ]


# ── After a restart ─────────────────────────────────────────────────────────────────────────────


def restart_adapter(session: AdapterSession) -> AdapterSession:
    session.adapter = EnvelopeAdapter(SESSION, history=session.envelopes)
    return session


@pytest.mark.req("adapter.resumed")
def test_a_running_turn_continues_after_a_restart() -> None:
    session = begin_session("hi")
    session.handle_event(make_tools_called(make_call("k", "ask_user", questions=[]), TWO))
    session.handle_event(make_tools_called(make_call("a")), "child", **make_parent("run", "K", 1))
    restart_adapter(session)
    session.handle_event(QuestionsAsked("ask-1", (SURE,)))
    assert [ask.call for ask in session.adapter.pending_asks] == ["k"]
    session.handle_event(TextPiece("done"), "child", **make_parent("run", "K", 1))
    session.handle_event(make_tool_returned("k"))
    session.handle_event(DONE)
    assert session.summaries[7:] == [
        "tool-call-start[B] a",
        "tool-call-end k",
        "text[B] done",
        "tool-call-end[B] a",
        "stop[A]",
        "stop[B]",
        "tool-call-end K:0",
        "tool-call-end K:1",
        "turn-end completed",
    ]


@pytest.mark.req("adapter.resumed")
@pytest.mark.parametrize("guest", ["", "twin"])
def test_a_turn_that_ended_during_a_restart_is_closed(guest: str) -> None:
    session = begin_session("hi", guest=guest)
    restart_adapter(session)
    session.handle_event(RunBegan("next"), "other")
    assert session.summaries[-3:] == ["turn-end failed", "user-text next", "turn-start"]
    session = begin_session("hi", guest=guest)
    restart_adapter(session).check_envelopes(session.adapter.close_lost_turn(9000))
    assert session.summaries[-1] == "turn-end failed"
    # Later events of it become another turn.
    restart_adapter(session).handle_event(TextPiece("wait"))
    assert session.summaries[-1] == "turn-start"


@pytest.mark.req("adapter.background")
@pytest.mark.req("adapter.resumed")
def test_a_background_task_continues_after_a_restart() -> None:
    session = begin_session()
    session.handle_event(make_tools_called(LATER))
    restart_adapter(session)
    session.handle_event(make_tool_returned("K", STARTED))
    session.handle_event(TextPiece("On it."), "child", **make_parent("run", "K"))
    session.handle_event(DONE, "child", **make_parent("run", "K"))
    assert session.summaries[-3:] == ["tool-call-end K:0", "text[A] On it.", "stop[A]"]


@pytest.mark.req("adapter.resumed")
def test_a_nested_task_is_matched_by_its_call_after_a_restart() -> None:
    session = begin_session()
    session.handle_event(make_tools_called(TWO))
    session.handle_event(
        make_tools_called(make_delegate_call("L", {"message": "deep"})),
        "child",
        **make_parent("run", "K", 1),
    )
    restart_adapter(session)
    session.handle_event(TextPiece("deeper"), "grandchild", **make_parent("child", "L"))
    session.handle_event(DONE, "grandchild", **make_parent("child", "L"))
    assert session.summaries[-3:] == ["text[C] deeper", "stop[C]", "tool-call-end[B] L:0"]


@pytest.mark.req("adapter.background")
@pytest.mark.req("adapter.resumed")
def test_a_background_task_is_reported_after_a_restart() -> None:
    session = begin_session()
    session.handle_event(make_tools_called(LATER))
    session.handle_event(make_tool_returned("K", STARTED))
    session.handle_event(DONE)
    restart_adapter(session)
    session.handle_event(TextPiece("Found it."), "child", **make_parent("run", "K"), agent="scout")
    session.handle_event(DONE, "child", **make_parent("run", "K"), agent="scout")
    assert session.summaries[-3:] == [
        "turn-start",
        "service **scout** has finished.\n\nFound it.",
        "turn-end completed",
    ]
