"""Turns as people see them: what comes of each thing that can happen, envelope by envelope."""

import json

import pytest
from msgspec import UNSET

from apps.web.tests.adapter.session import (
    DONE,
    KILLED,
    SESSION,
    Session,
    call,
    called,
    child_of,
    delegated,
    returned,
    told,
)
from crabtalk_web.adapter import Adapter, Heard
from crabtalk_web.adapter.adapter import LOST, UNSEEN
from crabtalk_web.adapter.happenings import (
    Asked,
    Began,
    Call,
    Compacted,
    Ended,
    Option,
    Piece,
    Question,
    Reason,
    SegmentOver,
    Steered,
    StepOver,
    Used,
)
from crabtalk_web.stream import (
    EnvelopeError,
    File,
    Text,
    ToolCallEnd,
    ToolCallStart,
    Usage,
    derived_id,
    encode,
)

SURE = Question("Really?", "Sure", (Option("Yes"), Option("No", "never")))


def begun(said: str = "", **parts: str) -> Session:
    session = Session()
    session.hear(Began(said), **parts)
    return session


# ── Text ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.turn")
def test_a_turn_is_what_was_said_then_all_that_comes_of_it() -> None:
    session = begun("Find TODOs")
    session.hear(Piece("Searching"))
    session.hear(Piece("..."))
    session.hear(SegmentOver())
    session.hear(DONE)
    assert session.told == [
        "user-text Find TODOs",
        "turn-start",
        "text Searching...",
        "turn-end completed",
    ]
    user, *agents = session.envelopes
    assert user.turn == ""
    assert {one.turn for one in agents} == {derived_id(SESSION, "turn", "run", 0)}


@pytest.mark.req("adapter.ids")
def test_ids_are_derived_from_session_run_and_place() -> None:
    session = begun("hi")
    turn = derived_id(SESSION, "turn", "run", 0)
    assert [e.id for e in session.envelopes] == [derived_id(SESSION, turn, n) for n in range(2)]


@pytest.mark.req("adapter.text")
def test_text_and_thinking_are_told_apart_and_go_when_the_kind_changes() -> None:
    session = begun()
    session.hear(Piece("\n\nhm", thinking=True))
    assert session.hear(Piece(" ", thinking=True)) == []
    assert session.hear(Piece("\nWell,\n")) == session.envelopes[-1:]
    session.hear(Piece("\n\nno.\n\n"))
    session.hear(DONE)
    assert session.told[1:-1] == ["thinking hm ".rstrip(), "text Well,\n\n\nno."]


@pytest.mark.req("adapter.text")
@pytest.mark.parametrize(
    "next_one", [called(call("k")), returned("k"), Asked("a", (SURE,)), Steered("x"), DONE, KILLED]
)
def test_whatever_follows_text_comes_after_it(next_one: object) -> None:
    session = begun()
    session.hear(Piece("Wait"))
    assert isinstance(session.hear(next_one)[0].ev, Text)  # type: ignore[arg-type]


@pytest.mark.req("adapter.text")
def test_segments_of_nothing_but_space_are_not_told() -> None:
    session = begun()
    for piece in (Piece("\n \n"), Piece("\n", thinking=True), Piece("  ")):
        session.hear(piece)
    session.hear(DONE)
    assert session.told == ["turn-start", "turn-end completed"]


@pytest.mark.req("adapter.text.early")
def test_a_long_text_goes_paragraph_by_paragraph_and_idle_ones_too() -> None:
    session = begun()
    paragraph = "word " * 200 + "\n\n"
    for _ in range(5):
        session.hear(Piece(paragraph))
    assert [len(e.ev.text) for e in session.envelopes if isinstance(e.ev, Text)] == [
        len(paragraph * 5) - 2
    ]
    session.hear(Piece("one\n\ntwo"))
    assert [e.ev for e in session.take(session.adapter.idle(5000))] == [Text(text="one")]
    assert session.take(session.adapter.idle(6000)) == []
    session.hear(DONE)
    assert session.told[-2:] == ["text two", "turn-end completed"]


# ── Tools ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.tools")
def test_calls_side_by_side_end_as_they_finish_with_what_they_gave_back() -> None:
    session = begun()
    session.hear(called(call("k1", "bash", command="ls -l"), call("k2", "read", path="/a")))
    session.hear(returned("k2", "no such file", is_error=True, duration_ms=7))
    session.hear(returned("k1", "a\n"))
    session.hear(StepOver())
    session.hear(DONE)
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
def test_calls_that_are_numbered_anew_in_every_step_stay_apart() -> None:
    session = begun()
    for _ in range(3):
        session.hear(called(call("call_0")))
        session.hear(called(call("call_0")))
        session.hear(returned("call_0"))
        session.hear(returned("call_0"))
    assert [w for w in session.told if "start call" in w] == [
        "tool-call-start call_0",
        "tool-call-start call_0~2",
        "tool-call-start call_0~3",
    ]


@pytest.mark.req("adapter.missed")
def test_a_result_that_got_lost_ends_with_its_step() -> None:
    session = begun()
    session.hear(called(call("k1"), call("k2")))
    session.hear(returned("k2"))
    session.hear(StepOver(), missed=3)
    assert session.told[3:] == [
        "tool-call-end k2",
        "service **Note:** up to 3 events may be missing here.",
        "tool-call-end k1",
    ]


# ── Usage ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.usage")
def test_usage_goes_with_the_text_it_paid_for() -> None:
    session = Session(Adapter(SESSION, context_window=4096))
    session.hear(Began())
    session.hear(Piece("Hi"))
    assert session.hear(SegmentOver()) == []
    (said,) = session.hear(Used(100, 7, cached=60))
    assert said.usage == Usage(
        input_tokens=40, output_tokens=7, cache_read_input_tokens=60, context_window=4096
    )
    (end,) = session.hear(DONE)
    assert not end.usage


@pytest.mark.req("adapter.usage")
def test_usage_of_calls_goes_with_the_next_words_or_with_the_end() -> None:
    session = begun()
    session.hear(called(call("k")))
    session.hear(returned("k"))
    session.hear(StepOver())
    assert session.hear(Used(10, 1)) == []
    session.hear(called(call("l")))
    assert session.envelopes[-1].usage == Usage(input_tokens=10, output_tokens=1)
    session.hear(returned("l"))
    session.hear(Used(20, 2, cached=99))
    (end,) = session.hear(Ended(Reason.MAX_ITERATIONS))[1:]
    assert end.usage == Usage(input_tokens=0, output_tokens=2, cache_read_input_tokens=20)


@pytest.mark.req("adapter.usage")
def test_usage_waits_for_words_of_the_agent_it_is_of() -> None:
    session = begun()
    session.hear(called(LATER))
    session.hear(returned("K", STARTED))
    session.hear(Used(10, 1))
    inside = child_of("run", "K")
    session.hear(Piece("Looking"), "child", **inside)
    session.hear(called(call("k")), "child", **inside)
    session.hear(Used(99, 9), "child", **inside)
    session.hear(Piece("Done."))
    session.hear(DONE)
    used = {str(e.ev): e.usage for e in session.envelopes if e.usage}
    assert used == {str(Text(text="Done.")): Usage(input_tokens=10, output_tokens=1)}


# ── Ends ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (Ended(Reason.COMPLETED), ["turn-end completed"]),
        (Ended(Reason.UNKNOWN), ["turn-end completed"]),
        (Ended(Reason.CANCELLED), ["turn-end cancelled"]),
        (Ended(Reason.ERROR, "no model"), ["service **Error:** no model", "turn-end failed"]),
        (Ended(Reason.UNKNOWN, "no model"), ["service **Error:** no model", "turn-end failed"]),
        (
            Ended(Reason.MAX_ITERATIONS),
            ["service The agent used up the steps it may take.", "turn-end failed"],
        ),
        (
            Ended(Reason.NO_ACTION),
            ["service The model returned neither text nor a call.", "turn-end failed"],
        ),
    ],
)
@pytest.mark.req("adapter.ends")
def test_a_turn_ends_as_its_run_did(ended: Ended, told: list[str]) -> None:
    session = begun()
    session.hear(ended)
    assert session.told[1:] == told


@pytest.mark.req("adapter.kill")
def test_what_was_asked_to_stop_is_cancelled_however_it_ends() -> None:
    for end in (Ended(Reason.UNKNOWN), Ended(Reason.ERROR, "cut off"), None):
        session = begun()
        session.hear(Piece("half a w"))
        session.adapter.kill()
        if end is None:
            session.take(session.adapter.lose(5000))
        else:
            session.hear(end)
        assert session.told == ["turn-start", "text half a w", "turn-end cancelled"]


@pytest.mark.req("adapter.kill")
def test_to_stop_what_does_not_run_is_nothing() -> None:
    session = Session()
    session.adapter.kill()
    session.hear(Began())
    session.hear(DONE)
    assert session.told == ["turn-start", "turn-end completed"]


@pytest.mark.req("adapter.kill")
def test_a_kill_closes_calls_of_tasks_tasks_and_then_the_turn() -> None:
    session = begun()
    session.hear(Piece("Let me see"))
    session.hear(called(delegated("K", {"agent": "scout", "message": "look"})))
    inside = child_of("run", "K")
    session.hear(Began(), "child", **inside)
    session.hear(Piece("Looking"), "child", **inside)
    session.hear(called(call("a"), call("b")), "child", **inside)
    session.hear(returned("a"), "child", **inside)
    session.hear(KILLED)
    session.hear(KILLED, "child", **inside)
    assert session.told == [
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
def test_a_lost_connection_closes_the_turn_as_failed_and_what_follows_is_another() -> None:
    session = begun()
    session.hear(called(call("k"), delegated("K", {"message": "dig"})))
    session.hear(Piece("Dig"), "child", **child_of("run", "K"))
    session.take(session.adapter.lose(5000))
    assert session.told[4:] == [
        "text[A] Dig",
        f"service {LOST}",
        "stop[A]",
        "tool-call-end k",
        "tool-call-end K:0",
        "turn-end failed",
    ]
    assert session.hear(DONE, "child", **child_of("run", "K")) == []
    session.hear(Piece("still here"))
    session.hear(DONE)
    assert session.told[10:] == ["turn-start", "text still here", "turn-end completed"]
    assert session.take(session.adapter.lose(9000)) == []


# ── People ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.user")
def test_what_people_said_elsewhere_is_repeated_and_what_came_from_here_is_not() -> None:
    session = Session()
    session.hear(Began(""))
    session.hear(Steered("left"))
    session.hear(DONE)
    session.hear(Began("Hello"), "other")
    assert session.told == [
        "turn-start",
        "user-text left",
        "turn-end completed",
        "user-text Hello",
        "turn-start",
    ]


@pytest.mark.req("adapter.user")
def test_a_run_that_goes_on_after_its_end_is_another_turn() -> None:
    session = begun()
    session.hear(Piece("one"))
    session.hear(DONE)
    assert session.hear(Piece("not heard")) == []
    session.adapter.reopen("run")
    session.hear(Steered("and?"))
    session.hear(Piece("two"))
    session.hear(DONE)
    assert session.told[-6:] == [
        "text one",
        "turn-end completed",
        "turn-start",
        "user-text and?",
        "text two",
        "turn-end completed",
    ]


@pytest.mark.req("adapter.asks")
def test_a_question_is_the_call_that_asks_until_it_is_answered() -> None:
    session = begun()
    session.hear(called(call("k", "ask_user", questions=[{"question": "Really?"}])))
    assert session.hear(Asked("ask-1", (SURE,)), agent="crab", sender="bo") == []
    (ask,) = session.adapter.asks
    assert (ask.id, ask.call, ask.agent, ask.sender) == ("ask-1", "k", "crab", "bo")
    assert ask.questions == (SURE,)
    assert session.take(session.adapter.answer("ask-1", 2000)) == []
    assert session.adapter.asks == ()
    session.hear(returned("k", "Yes"))
    assert session.told[1:] == ["tool-call-start k", "tool-call-end k"]


@pytest.mark.req("adapter.asks")
def test_a_question_about_a_call_is_shown_as_one_of_its_own() -> None:
    session = begun()
    session.hear(called(call("k")))
    (start,) = session.hear(Asked("ask-1", (SURE,)))
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
    # Told again to whoever comes back, it is the same question.
    assert session.hear(Asked("ask-1", (SURE,))) == []
    session.take(session.adapter.answer("ask-1", 2000))
    assert session.take(session.adapter.answer("ask-1", 2000)) == []
    session.hear(returned("k"))
    assert session.told[2:] == ["tool-call-start ask-1", "tool-call-end ask-1", "tool-call-end k"]


@pytest.mark.req("adapter.asks")
@pytest.mark.parametrize("end", [StepOver(), DONE, KILLED])
def test_a_question_nobody_answers_is_over_with_its_step_or_its_turn(end: object) -> None:
    session = begun()
    session.hear(called(call("k")))
    session.hear(Asked("ask-1", (SURE,)))
    session.hear(end)  # type: ignore[arg-type]
    assert session.adapter.asks == ()
    assert session.order.calls == {}


# ── Guests ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.guests")
def test_a_guest_speaks_under_a_name_of_its_own_and_in_no_call() -> None:
    session = begun("And you?", guest="twin")
    session.hear(Piece("Me too."), guest="twin")
    session.hear(Used(5, 1), guest="twin")
    session.hear(DONE, guest="twin")
    assert session.told == [
        "user-text And you?",
        "turn-start",
        "start[A] twin",
        "text[A] Me too.",
        "stop[A]",
        "turn-end completed",
    ]
    assert session.envelopes[3].subagent == derived_id(SESSION, "guest", "twin")
    assert session.envelopes[3].usage


@pytest.mark.req("adapter.guests")
def test_half_a_guests_words_are_dropped_when_it_is_killed() -> None:
    session = begun(guest="twin")
    session.hear(Piece("To begin w"), guest="twin")
    session.hear(KILLED, guest="twin")
    assert session.told == ["turn-start", "start[A] twin", "stop[A]", "turn-end cancelled"]


@pytest.mark.req("adapter.compat")
def test_readers_that_do_not_show_names_are_told_who_the_guest_is() -> None:
    session = Session(is_compat=True)
    session.hear(Began(), guest="tw*in")
    session.hear(Piece("Me too."), guest="tw*in")
    session.hear(DONE, guest="tw*in")
    assert session.told[1:4] == [
        r"service **tw\*in** (guest)",
        "start[A] tw*in",
        "text[A] Me too.",
    ]


@pytest.mark.req("adapter.compat")
def test_readers_that_draw_tools_by_their_names_get_those() -> None:
    session = Session(is_compat=True)
    session.hear(Began())
    session.hear(called(call("k", "read", path="/a"), delegated("K", {"message": "dig"})))
    starts = [e.ev for e in session.envelopes if isinstance(e.ev, ToolCallStart)]
    assert [start.name for start in starts] == ["Read", "Agent"]
    assert starts[0].args == {"path": "/a", "file_path": "/a"}
    (ask,) = session.hear(Asked("a", (SURE,)))
    assert isinstance(ask.ev, ToolCallStart)
    assert ask.ev.name == "AskUserQuestion"


@pytest.mark.req("adapter.compat.usage")
def test_readers_that_look_for_tokens_outside_of_turns_find_them_there() -> None:
    session = Session(is_compat=True)
    session.hear(Began())
    session.hear(Piece("Hello."))
    session.hear(SegmentOver())
    session.hear(Used(100, 7, cached=40))
    session.hear(called(call("k")))
    session.hear(returned("k"))
    session.hear(Used(120, 3))
    session.hear(DONE)
    assert session.told == [
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
        Usage(input_tokens=60, output_tokens=7, cache_read_input_tokens=40),
        Usage(input_tokens=120, output_tokens=3),
    ]
    assert all(not e.is_ignored for e in bare)
    assert all(e.usage is UNSET for e in session.envelopes if e not in bare)
    with pytest.raises(EnvelopeError, match="turn is missing"):
        encode(bare[0])
    # Who goes on from the journal gives the next envelope the number it would have had.
    again = Adapter(SESSION, is_compat=True, history=session.envelopes[:3])
    heard = Heard(run="run", what=called(call("k")), at=1050)
    assert again.hear(heard) == session.envelopes[3:4]


@pytest.mark.req("adapter.compat.output")
def test_readers_that_show_no_results_get_them_as_reasoning() -> None:
    session = Session(Adapter(SESSION, shows_output=True))
    session.hear(Began())
    session.hear(called(call("a"), call("b"), call("c")))
    session.hear(returned("a", "one\n```\ntwo\n"))
    session.hear(returned("b", ""))
    session.hear(KILLED)
    assert session.told == [
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

TWO = delegated("K", {"agent": "scout", "message": "# look\nhere"}, {"message": "dig"})


@pytest.mark.req("adapter.delegation")
def test_each_task_is_a_call_with_an_agent_in_it() -> None:
    session = begun()
    session.hear(called(TWO))
    for place, run in enumerate(("scout-run", "worker-run")):
        session.hear(Began("look"), run, **child_of("run", "K", place))
        session.hear(Piece(f"{run} says"), run, **child_of("run", "K", place))
    session.hear(DONE, "worker-run", **child_of("run", "K", 1))
    session.hear(DONE, "scout-run", **child_of("run", "K"))
    session.hear(returned("K", "[]"))
    session.hear(DONE)
    assert session.told == [
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
def test_tasks_nobody_heard_of_end_with_what_the_call_says_came_of_them() -> None:
    session = begun()
    session.hear(called(TWO))
    results = [{"agent": "scout", "result": "found", "error": None}, {"agent": "w", "error": "no"}]
    session.hear(returned("K", json.dumps(results)))
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
        (Ended(Reason.ERROR, "no model"), "no model", True),
        (Ended(Reason.NO_ACTION), "", False),
    ],
)
def test_a_task_that_fails_says_so(ended: Ended, result: str, is_error: bool) -> None:
    session = begun()
    session.hear(called(delegated("K", {"message": "dig"})))
    *_, end = session.hear(ended, "child", **child_of("run", "K"))
    assert isinstance(end.ev, ToolCallEnd)
    assert (end.ev.result, end.ev.is_error) == (result, is_error)


@pytest.mark.req("adapter.delegation")
def test_the_words_of_a_task_that_is_over_are_not_told() -> None:
    session = begun()
    session.hear(called(delegated("K", {"message": "dig"})))
    session.hear(returned("K", "refused", is_error=True))
    inside = child_of("run", "K")
    assert session.hear(Piece("late"), "child", **inside) == []
    assert session.hear(called(call("k")), "child", **inside) == []
    assert session.hear(DONE, "child", **inside) == []
    session.hear(DONE)
    assert session.told[-1] == "turn-end completed"


@pytest.mark.req("adapter.delegation.nested")
def test_tasks_within_tasks_each_have_an_agent_of_their_own() -> None:
    session = begun()
    run, depth = "run", 4
    for level in range(depth):
        parts = child_of(f"run{level - 1}" if level > 1 else "run", "K") if level else {}
        run = f"run{level}" if level else "run"
        session.hear(called(delegated("K", {"message": f"level {level}"})), run, **parts)
    session.hear(KILLED)
    assert session.told == [
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
def test_a_task_that_is_heard_before_its_call_waits_for_it() -> None:
    session = begun()
    inner = child_of("child", "L")
    assert session.hear(Piece("deep"), "grandchild", **inner) == []
    assert session.hear(DONE, "grandchild", **inner) == []
    outer = child_of("run", "K")
    assert session.hear(Piece("early"), "child", **outer) == []
    assert session.hear(called(delegated("L", {"message": "dig"})), "child", **outer) == []
    assert session.adapter.statistics()["orphans"] == 4
    session.hear(called(delegated("K", {"message": "look"})))
    assert session.adapter.statistics()["orphans"] == 0
    assert session.told == [
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
def test_those_who_wait_are_bounded_and_the_oldest_make_room() -> None:
    session = begun()
    for number in range(5000):
        session.hear(Piece("x"), f"child-{number}", **child_of("nobody", str(number)))
    assert session.adapter.statistics()["orphans"] == 4096
    for number in range(8):
        session.hear(Piece("x" * 1_000_000), "big", **child_of("nobody", f"big {number}"))
    assert session.adapter.statistics()["orphans"] < 4096
    session.hear(Piece("x" * 5_000_000), "huge", **child_of("nobody", "huge"))
    assert session.adapter.statistics() == {
        "turns_waiting": 0,
        "orphans": 0,
        "background": 0,
        "dropped": 5009,
    }


@pytest.mark.req("adapter.orphans")
def test_room_is_free_again_once_those_who_waited_are_told() -> None:
    session = begun()
    for number in range(3):
        key = f"K{number}"
        session.hear(Piece("x" * 3_000_000), f"child-{number}", **child_of("run", key))
        session.hear(called(delegated(key, {"message": "look"})))
    assert session.adapter.statistics()["dropped"] == 0


@pytest.mark.req("adapter.orphans")
def test_those_who_wait_in_vain_go_with_the_turn() -> None:
    session = begun()
    session.hear(Piece("x"), "child", **child_of("run", "never called"))
    session.hear(DONE)
    assert session.adapter.statistics()["orphans"] == 0
    assert session.hear(Piece("x"), "child", **child_of("run", "never called")) == []


# ── In the background ───────────────────────────────────────────────────────────────────────────

LATER = delegated("K", {"agent": "scout", "message": "look"}, background=True)
STARTED = json.dumps([{"agent": "scout", "task_id": "delegate:1"}])


@pytest.mark.req("adapter.background")
def test_a_task_in_the_background_ends_its_call_at_once_and_goes_on() -> None:
    session = begun()
    session.hear(called(LATER))
    session.hear(returned("K", STARTED))
    session.hear(StepOver())
    session.hear(Piece("On it."), "child", **child_of("run", "K"))
    session.hear(DONE, "child", **child_of("run", "K"))
    session.hear(DONE)
    assert session.told[1:] == [
        "tool-call-start K:0",
        "start[A] scout — look",
        "tool-call-end K:0",
        "text[A] On it.",
        "stop[A]",
        "turn-end completed",
    ]


@pytest.mark.req("adapter.background")
def test_one_that_was_refused_stops_at_once() -> None:
    session = begun()
    session.hear(called(LATER))
    session.hear(returned("K", "too many", is_error=True))
    assert session.told[-2:] == ["stop[A]", "tool-call-end K:0"]
    session.hear(DONE)
    assert session.adapter.statistics()["background"] == 0


@pytest.mark.req("adapter.background")
@pytest.mark.parametrize(
    ("ended", "report"),
    [
        (DONE, "**scout — look** has finished.\n\nFound it."),
        (KILLED, "**scout — look** was cancelled."),
        (Ended(Reason.ERROR, "no model"), "**scout — look** failed: no model"),
    ],
)
@pytest.mark.parametrize("heard_before", [True, False])
@pytest.mark.parametrize("is_busy", [True, False])
def test_one_that_outlives_its_turn_is_reported_in_the_next_or_in_one_of_its_own(
    ended: Ended, report: str, heard_before: bool, is_busy: bool
) -> None:
    session = begun()
    inside = child_of("run", "K")
    session.hear(called(LATER))
    session.hear(returned("K", STARTED))
    if heard_before:
        session.hear(Piece("Looking"), "child", **inside)
    session.hear(DONE)
    assert session.told[-2:] == ["stop[A]", "turn-end completed"]
    if is_busy:
        session.hear(Began("next"), "other")
    session.hear(Piece("hm", thinking=True), "child", **inside)
    session.hear(Piece("Found "), "child", **inside)
    session.hear(Piece("it."), "child", **inside)
    session.hear(Piece("grandchildren are not told of"), "below", **child_of("child", "L"))
    found = told(session.hear(ended, "child", **inside))
    inside_of = ([], []) if is_busy else (["turn-start"], ["turn-end completed"])
    assert found == [*inside_of[0], f"service {report}", *inside_of[1]]
    assert session.hear(ended, "child", **inside) == []


@pytest.mark.req("adapter.background")
@pytest.mark.parametrize("heard_before", [True, False])
def test_one_that_outlives_the_task_it_began_in_is_reported_too(heard_before: bool) -> None:
    session = begun()
    outer, inner = child_of("run", "L"), child_of("child", "K")
    session.hear(called(delegated("L", {"message": "dig"})))
    session.hear(called(LATER), "child", **outer)
    session.hear(returned("K", STARTED), "child", **outer)
    if heard_before:
        session.hear(Piece("Looking"), "grandchild", **inner)
    session.hear(DONE, "child", **outer)
    assert session.told[-3:] == ["stop[B]", "stop[A]", "tool-call-end L:0"]
    session.hear(Piece("Found it."), "grandchild", **inner)
    session.hear(returned("L"))
    session.hear(DONE)
    session.hear(DONE, "grandchild", **inner)
    assert session.told[-2] == "service **scout — look** has finished.\n\nFound it."


# ── Beside the turns ────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.compaction")
def test_a_compaction_is_told_in_a_turn_of_its_own_or_in_the_open_one() -> None:
    session = Session()
    session.hear(Compacted("The beach."), "")
    assert session.told == ["turn-start", "service **Compacted:** The beach.", "turn-end completed"]
    session.hear(Began())
    session.hear(Compacted(""), "")
    assert session.told[3:] == ["turn-start", "service **Compacted**"]


@pytest.mark.req("adapter.files")
def test_a_file_goes_with_the_agent_that_made_it() -> None:
    file = File(ref="up_1", name="a.png", size=3)
    session = Session()
    session.take(session.adapter.attach(file, 5))
    assert session.told == ["turn-start", "file", "turn-end completed"]
    assert session.take(session.adapter.attach(file, 6)) == []
    session.hear(Began())
    session.hear(called(delegated("K", {"message": "draw"})))
    child = child_of("run", "K")
    session.hear(Piece("Drawn.\n\nIt shows a "), "child", **child)
    said, sent = session.take(session.adapter.attach(file, 7, run="child"))
    assert (said.ev, sent.ev, said.subagent) == (Text(text="Drawn."), file, sent.subagent)
    assert sent.subagent
    session.hear(Piece("beach."), "child", **child)
    session.hear(DONE, "child", **child)
    assert "text[A] It shows a beach." in session.told, "a sentence stays whole"
    (sent,) = session.take(session.adapter.attach(file, 8, run="nobody"))
    assert sent.subagent == ""


@pytest.mark.req("adapter.note")
def test_a_note_is_told_once_where_it_belongs() -> None:
    session = Session()
    session.take(session.adapter.note("queued", 5))
    assert session.take(session.adapter.note("queued", 5)) == []
    session.hear(Began())
    session.take(session.adapter.note("queued", 6))
    assert session.told == [
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
def test_a_megabyte_of_anything_anywhere_comes_in_envelopes_that_travel(letter: str) -> None:
    session = Session()
    big = letter * MEGABYTE
    session.hear(Began(big))
    session.hear(Piece(big))
    session.hear(Piece(big, thinking=True))
    session.hear(called(Call("k", big, big), Call(big, "bash", json.dumps({"command": big}))))
    session.hear(called(delegated("K", {"message": big, "agent": big})))
    session.hear(returned("k", big))
    session.hear(returned(big, big, is_error=True))
    session.hear(Asked(big, (Question(big, big, (Option(big, big),)),)))
    session.hear(Steered(big))
    session.hear(Ended(Reason.ERROR, big))
    assert session.told[-1] == "turn-end failed"
    texts = [e.ev.text for e in session.envelopes if e.role == "user" and isinstance(e.ev, Text)]
    assert "".join(texts) == 2 * big


@pytest.mark.req("adapter.tools.arguments")
def test_arguments_that_are_no_json_or_no_unicode_are_told_all_the_same() -> None:
    session = begun()
    for number, text in enumerate(['{"a": NaN}', '{"a": "\\udc00"}', "\ud800", "[" * 9999]):
        session.hear(called(Call(f"k{number}", "x\ud800", text)))
    session.hear(DONE)
    args = [e.ev.args for e in session.envelopes if isinstance(e.ev, ToolCallStart)]
    assert args == [{"raw": '{"a": NaN}'}, {"a": "\ufffd"}, {"raw": "?"}, {"raw": "[" * 9999}]


# ── One after the other ─────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.waiting")
def test_a_turn_that_is_accepted_while_another_runs_follows_it() -> None:
    session = Session()
    session.hear(Began("one"), "r1", is_streamed=True)
    session.hear(Began("two"), "r2", is_streamed=True)
    session.hear(Piece("first"), "r1", is_streamed=True)
    session.hear(DONE, "r1", is_streamed=True)
    session.hear(Piece("second"), "r2", is_streamed=True)
    session.hear(DONE, "r2", is_streamed=True)
    assert session.told == [
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
    session = Session()
    session.hear(Began("one"), "r1", is_streamed=True)
    session.hear(Began("two"), "r2")
    session.hear(Piece("second"), "r2")
    session.hear(DONE, "r2")
    session.hear(Piece("first"), "r1", is_streamed=True)
    session.hear(DONE, "r1", is_streamed=True)
    assert [word for word in session.told if word.startswith("text")] == [
        "text first",
        "text second",
    ]
    assert "turn-end failed" not in session.told


@pytest.mark.req("adapter.missed")
def test_a_turn_whose_end_got_lost_is_closed_when_the_next_begins() -> None:
    session = begun("one")
    session.hear(Began("two"), "other")
    assert session.told[2:] == [
        f"service {UNSEEN}",
        "turn-end failed",
        "user-text two",
        "turn-start",
    ]
    assert session.hear(Piece("late")) == []


@pytest.mark.req("adapter.waiting")
def test_what_waits_for_a_turn_that_never_ends_is_bounded() -> None:
    session = Session()
    session.hear(Began("one"), "r1", is_streamed=True)
    session.hear(Began("two"), "r2", is_streamed=True)
    for _ in range(5000):
        session.hear(Piece("x"), "r2", is_streamed=True)
    session.hear(DONE, "r2", is_streamed=True)
    assert session.told[2:6] == [
        f"service {UNSEEN}",
        "turn-end failed",
        "user-text two",
        "turn-start",
    ]
    texts = [e.ev.text for e in session.envelopes if isinstance(e.ev, Text) and e.turn]
    assert "".join(texts) == "x" * 5000


@pytest.mark.req("adapter.sources")
def test_a_run_that_is_streamed_and_fed_is_told_once() -> None:
    for first in (True, False):
        session = Session()
        for what in (Began("hi"), Piece("yo"), SegmentOver(), DONE):
            session.hear(what, is_streamed=first)
            session.hear(what, is_streamed=not first)
        assert session.told == ["user-text hi", "turn-start", "text yo", "turn-end completed"]


@pytest.mark.req("adapter.resumed")
def test_a_run_that_is_met_on_its_way_is_a_turn_from_there_on() -> None:
    session = Session()
    assert session.hear(returned("k")) == []
    assert session.hear(StepOver()) == []
    session.hear(Piece("and so"))
    session.hear(DONE)
    assert session.told == ["turn-start", "text and so", "turn-end completed"]
    assert session.hear(DONE, "met at its end") == []


@pytest.mark.req("adapter.ends")
def test_a_run_that_failed_before_it_began_says_so() -> None:
    session = Session()
    session.hear(Ended(Reason.ERROR, "no such guest"))
    assert session.told == ["turn-start", "service **Error:** no such guest", "turn-end failed"]


# ── After a restart ─────────────────────────────────────────────────────────────────────────────


def restarted(session: Session) -> Session:
    session.adapter = Adapter(SESSION, history=session.envelopes)
    return session


@pytest.mark.req("adapter.resumed")
def test_a_turn_that_still_runs_goes_on_after_a_restart() -> None:
    session = begun("hi")
    session.hear(called(call("k", "ask_user", questions=[]), TWO))
    session.hear(called(call("a")), "child", **child_of("run", "K", 1))
    restarted(session)
    session.hear(Asked("ask-1", (SURE,)))
    assert [ask.call for ask in session.adapter.asks] == ["k"]
    session.hear(Piece("done"), "child", **child_of("run", "K", 1))
    session.hear(returned("k"))
    session.hear(DONE)
    assert session.told[7:] == [
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
def test_a_turn_that_ended_meanwhile_is_closed_after_a_restart(guest: str) -> None:
    session = begun("hi", guest=guest)
    restarted(session)
    session.hear(Began("next"), "other")
    assert session.told[-3:] == ["turn-end failed", "user-text next", "turn-start"]
    session = begun("hi", guest=guest)
    restarted(session).take(session.adapter.lose(9000))
    assert session.told[-1] == "turn-end failed"
    # And what is heard of it after that is another turn.
    restarted(session).hear(Piece("wait"))
    assert session.told[-1] == "turn-start"


@pytest.mark.req("adapter.background")
@pytest.mark.req("adapter.resumed")
def test_a_task_in_the_background_goes_on_after_a_restart() -> None:
    session = begun()
    session.hear(called(LATER))
    restarted(session)
    session.hear(returned("K", STARTED))
    session.hear(Piece("On it."), "child", **child_of("run", "K"))
    session.hear(DONE, "child", **child_of("run", "K"))
    assert session.told[-3:] == ["tool-call-end K:0", "text[A] On it.", "stop[A]"]


@pytest.mark.req("adapter.resumed")
def test_a_task_within_a_task_is_told_by_its_call_after_a_restart() -> None:
    session = begun()
    session.hear(called(TWO))
    session.hear(called(delegated("L", {"message": "deep"})), "child", **child_of("run", "K", 1))
    restarted(session)
    session.hear(Piece("deeper"), "grandchild", **child_of("child", "L"))
    session.hear(DONE, "grandchild", **child_of("child", "L"))
    assert session.told[-3:] == ["text[C] deeper", "stop[C]", "tool-call-end[B] L:0"]


@pytest.mark.req("adapter.background")
@pytest.mark.req("adapter.resumed")
def test_a_task_in_the_background_is_reported_after_a_restart_too() -> None:
    session = begun()
    session.hear(called(LATER))
    session.hear(returned("K", STARTED))
    session.hear(DONE)
    restarted(session)
    session.hear(Piece("Found it."), "child", **child_of("run", "K"), agent="scout")
    session.hear(DONE, "child", **child_of("run", "K"), agent="scout")
    assert session.told[-3:] == [
        "turn-start",
        "service **scout** has finished.\n\nFound it.",
        "turn-end completed",
    ]
