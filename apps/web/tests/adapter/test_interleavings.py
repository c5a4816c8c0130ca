"""Whatever happens in whatever order, the envelopes are in order and every turn is closed."""

from collections import Counter
from dataclasses import replace
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.web.tests.adapter.adapter_session import SESSION, AdapterSession
from apps.web.tests.adapter.run_simulation import TURNS, RunPlan, RunSimulation
from crabtalk_web.adapter import EnvelopeAdapter, ReceivedEvent
from crabtalk_web.adapter.run_events import EndReason, RunBegan, RunEnded, RunSteered, TextPiece
from crabtalk_web.stream import (
    Envelope,
    ServiceEvent,
    SubagentStart,
    SubagentStop,
    TextEvent,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
    TurnStart,
    derive_id,
)

CHANCE = st.randoms(use_true_random=False)
KILL = st.none() | st.integers(0, 60)
EXAMPLES = settings(max_examples=60)


def simulate_turns(
    turns: list[RunPlan], chance: Random, kill_at: int | None = None
) -> list[ReceivedEvent]:
    return RunSimulation(chance, kill_at=kill_at).run_turns(turns)


def is_closed(session: AdapterSession) -> bool:
    order = session.order
    return (order.turn, order.calls, order.agents) == ("", {}, set())


@EXAMPLES
@given(TURNS, CHANCE, KILL)
@pytest.mark.req("stream.order.closed")
@pytest.mark.req("adapter.closed")
def test_each_run_of_the_conversation_is_one_turn_and_every_turn_is_closed(
    turns: list[RunPlan], chance: Random, kill_at: int | None
) -> None:
    log = simulate_turns(turns, chance, kill_at)
    session = AdapterSession()
    session.handle_events(log)
    assert is_closed(session)
    started = [e.turn for e in session.envelopes if isinstance(e.ev, TurnStart)]
    assert [turn for turn in started if turn not in find_report_turns(session)] == [
        derive_id(SESSION, "turn", h.run, 0)
        for h in log
        if h.parent is None and isinstance(h.event, RunBegan)
    ]


def find_report_turns(session: AdapterSession) -> set[str]:
    """Turns that consist of a report only."""
    inside = Counter(e.turn for e in session.envelopes)
    return {
        e.turn for e in session.envelopes if isinstance(e.ev, ServiceEvent) and inside[e.turn] == 3
    } - {derive_id(SESSION, "turn", f"run-{number}", 0) for number in range(200)}


@EXAMPLES
@given(TURNS, CHANCE, KILL)
@pytest.mark.req("adapter.deterministic")
def test_the_same_events_give_the_same_envelopes(
    turns: list[RunPlan], chance: Random, kill_at: int | None
) -> None:
    log = simulate_turns(turns, chance, kill_at)
    journal = msgspec.json.encode(log)
    first, second = AdapterSession(), AdapterSession()
    first.handle_events(log)
    second.handle_events(msgspec.json.decode(journal, type=list[ReceivedEvent]))
    assert first.envelopes == second.envelopes
    # Replaying the log gives nothing new.
    assert first.handle_events(log) == []


@EXAMPLES
@given(TURNS, CHANCE, KILL)
@pytest.mark.req("adapter.text")
@pytest.mark.req("adapter.user")
def test_every_text_is_written_once_and_in_its_place(
    turns: list[RunPlan], chance: Random, kill_at: int | None
) -> None:
    log = simulate_turns(turns, chance, kill_at)
    session = AdapterSession()
    session.handle_events(log)
    messages = [h.event.text for h in log if isinstance(h.event, RunBegan) and h.event.text]
    steered = [h.event.text for h in log if isinstance(h.event, RunSteered)]
    repeated = [
        e.ev.text for e in session.envelopes if e.role == "user" and isinstance(e.ev, TextEvent)
    ]
    assert Counter(repeated) == Counter(messages + steered)
    expected_texts = Counter(
        letter
        for h in log
        if isinstance(h.event, TextPiece) and h.parent is None and not h.guest
        for letter in h.event.text
        if letter in "ab"
    )
    written_texts = Counter(
        letter
        for e in session.envelopes
        if isinstance(e.ev, TextEvent) and e.role == "agent" and not e.subagent
        for letter in e.ev.text
        if letter in "ab"
    )
    assert written_texts == expected_texts


def find_closing_envelopes(envelopes: list[Envelope]) -> list[Envelope]:
    """The envelopes up to the turn's end, from the point where only ends follow; queued events may
    come after it."""
    over = next(n for n, envelope in enumerate(envelopes) if isinstance(envelope.ev, TurnEnd))
    ends: list[Envelope] = []
    for envelope in reversed(envelopes[: over + 1]):
        if not isinstance(envelope.ev, ToolCallEnd | SubagentStop | TurnEnd):
            break
        ends.insert(0, envelope)
    return ends


@EXAMPLES
@given(TURNS.map(lambda turns: turns[:1]), CHANCE, st.integers(0, 60))
@pytest.mark.req("adapter.kill")
def test_a_killed_turn_closes_from_the_inside_out(
    turns: list[RunPlan], chance: Random, kill_at: int
) -> None:
    log = simulate_turns([replace(turns[0], guest="")], chance)
    session = AdapterSession()
    session.handle_events(
        h for h in log[:kill_at] if not (h.parent is None and isinstance(h.event, RunEnded))
    )
    if not session.order.turn:
        return
    depths = measure_depths(session.envelopes)
    agents = {e.ev.call: e.subagent for e in session.envelopes if isinstance(e.ev, ToolCallStart)}
    open_calls, active = dict(session.order.calls), set(session.order.agents)
    ends = find_closing_envelopes(session.handle_event(RunEnded(EndReason.CANCELLED), log[0].run))
    assert isinstance(ends[-1].ev, TurnEnd)
    assert ends[-1].ev.status == "cancelled"
    assert {e.ev.call for e in ends if isinstance(e.ev, ToolCallEnd)} == set(open_calls)
    assert {e.subagent for e in ends if isinstance(e.ev, SubagentStop)} == active
    # Deeper before shallower, and at one depth calls before the agents that made them.
    rank = [
        (-depths[e.subagent], isinstance(e.ev, SubagentStop))
        for e in ends[:-1]
        if not isinstance(e.ev, ToolCallEnd) or agents[e.ev.call] == e.subagent
    ]
    assert rank == sorted(rank)


def measure_depths(envelopes: list[Envelope]) -> dict[str, int]:
    depths = {"": 0}
    for e in envelopes:
        if isinstance(e.ev, ToolCallStart) and "sessionSubagent" in e.ev.args:
            depths[e.ev.args["sessionSubagent"]] = depths[e.subagent] + 1
    return depths


@EXAMPLES
@given(TURNS, CHANCE, KILL)
@pytest.mark.req("adapter.sources")
@pytest.mark.req("adapter.orphans")
def test_a_stream_that_runs_ahead_of_the_feed_or_behind_it_breaks_nothing(
    turns: list[RunPlan], chance: Random, kill_at: int | None
) -> None:
    log = simulate_turns(turns, chance, kill_at)
    fed = list(log)
    streamed = [msgspec.structs.replace(h, is_streamed=True) for h in log if h.parent is None]
    session = AdapterSession()
    while fed or streamed:
        source = chance.choice([s for s in (fed, streamed) if s])
        session.handle_events([source.pop(0)])
    assert is_closed(session)
    repeated = [
        e.ev.text for e in session.envelopes if e.role == "user" and isinstance(e.ev, TextEvent)
    ]
    messages = [h.event.text for h in log if isinstance(h.event, RunBegan) and h.event.text]
    assert not Counter(messages) - Counter(repeated)


@EXAMPLES
@given(TURNS, CHANCE, KILL, st.integers(0, 10))
@pytest.mark.req("adapter.missed")
def test_a_feed_that_loses_events_breaks_nothing(
    turns: list[RunPlan], chance: Random, kill_at: int | None, loses: int
) -> None:
    session = AdapterSession()
    missed = 0
    for received in simulate_turns(turns, chance, kill_at):
        if chance.randrange(20) < loses:
            missed += 1
        else:
            session.handle_events([msgspec.structs.replace(received, missed=missed)])
            missed = 0
    session.check_envelopes(session.adapter.close_lost_turn(10_000))
    assert is_closed(session)


@EXAMPLES
@given(TURNS, CHANCE, st.lists(st.integers(0, 80), max_size=3), st.booleans())
@pytest.mark.req("adapter.lost")
@pytest.mark.req("adapter.resumed")
def test_connections_lost_and_gateways_restarted_at_any_point_break_nothing(
    turns: list[RunPlan], chance: Random, points: list[int], is_restarted: bool
) -> None:
    session = AdapterSession()
    for number, received in enumerate(simulate_turns(turns, chance)):
        if number in points:
            if is_restarted:
                session.adapter = EnvelopeAdapter(SESSION, history=session.envelopes)
            elif chance.random() < 0.5:
                session.check_envelopes(session.adapter.close_lost_turn(2000 + number))
            else:
                session.adapter.mark_killed()
        session.handle_events([received])
    session.check_envelopes(session.adapter.close_lost_turn(10_000))
    assert is_closed(session)


@EXAMPLES
@given(TURNS, CHANCE, st.integers(0, 80))
@pytest.mark.req("adapter.resumed")
def test_a_gateway_that_restarts_at_once_continues_without_a_difference(
    turns: list[RunPlan], chance: Random, point: int
) -> None:
    """Except for text that was not journalled, and background work of a task: envelopes do not name
    the run of a task, and calls identify it only if their ids are unique."""
    straight, broken = AdapterSession(), AdapterSession()
    turns = [move_to_foreground(turn, but=True) for turn in turns]
    log = RunSimulation(chance, has_unique_ids=True).run_turns(turns)
    for number, received in enumerate(log):
        if number == point:
            broken.adapter = EnvelopeAdapter(SESSION, history=broken.envelopes)
        for session in (straight, broken):
            session.handle_events([received])
    assert Counter(outline_envelopes(broken.envelopes)) == Counter(
        outline_envelopes(straight.envelopes)
    )


def move_to_foreground(plan: RunPlan, *, but: bool = False) -> RunPlan:
    """Move all of its work to the foreground, except the run of `but`."""
    steps = [
        replace(
            step,
            calls=tuple(
                replace(
                    work,
                    tasks=tuple(map(move_to_foreground, work.tasks)),
                    in_background=but and work.in_background,
                )
                for work in step.calls
            ),
        )
        for step in plan.steps
    ]
    return replace(plan, steps=tuple(steps))


def outline_envelopes(envelopes: list[Envelope]) -> list[tuple[str, str, str]]:
    """The starts and ends of everything, with their places."""
    kinds = (ToolCallStart, ToolCallEnd, SubagentStart, SubagentStop, TurnStart, TurnEnd)
    return [
        (type(e.ev).__name__ + getattr(e.ev, "call", ""), e.turn, e.subagent)
        for e in envelopes
        if isinstance(e.ev, kinds)
    ]
