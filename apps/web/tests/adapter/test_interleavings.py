"""Whatever happens in whichever order, the envelopes are in order and every turn is closed."""

from collections import Counter
from dataclasses import replace
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.web.tests.adapter.session import SESSION, Session
from apps.web.tests.adapter.world import TURNS, Plan, World
from crabtalk_web.adapter import Adapter, Heard
from crabtalk_web.adapter.happenings import Began, Ended, Piece, Reason, Steered
from crabtalk_web.stream import (
    Envelope,
    Service,
    Start,
    Stop,
    Text,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
    TurnStart,
    derived_id,
)

CHANCE = st.randoms(use_true_random=False)
KILL = st.none() | st.integers(0, 60)
EXAMPLES = settings(max_examples=60)


def log_of(turns: list[Plan], chance: Random, kill_at: int | None = None) -> list[Heard]:
    return World(chance, kill_at=kill_at).carry_out(turns)


def is_closed(session: Session) -> bool:
    order = session.order
    return (order.turn, order.calls, order.agents) == ("", {}, set())


@EXAMPLES
@given(TURNS, CHANCE, KILL)
@pytest.mark.req("stream.order.closed")
@pytest.mark.req("adapter.closed")
def test_each_run_of_the_conversation_is_one_turn_and_every_turn_is_closed(
    turns: list[Plan], chance: Random, kill_at: int | None
) -> None:
    log = log_of(turns, chance, kill_at)
    session = Session()
    session.play(log)
    assert is_closed(session)
    started = [e.turn for e in session.envelopes if isinstance(e.ev, TurnStart)]
    assert [turn for turn in started if turn not in asides(session)] == [
        derived_id(SESSION, "turn", h.run, 0)
        for h in log
        if h.parent is None and isinstance(h.what, Began)
    ]


def asides(session: Session) -> set[str]:
    """The turns that are nothing but a report."""
    inside = Counter(e.turn for e in session.envelopes)
    return {
        e.turn for e in session.envelopes if isinstance(e.ev, Service) and inside[e.turn] == 3
    } - {derived_id(SESSION, "turn", f"run-{number}", 0) for number in range(200)}


@EXAMPLES
@given(TURNS, CHANCE, KILL)
@pytest.mark.req("adapter.deterministic")
def test_the_same_happenings_give_the_same_envelopes(
    turns: list[Plan], chance: Random, kill_at: int | None
) -> None:
    log = log_of(turns, chance, kill_at)
    journal = msgspec.json.encode(log)
    first, second = Session(), Session()
    first.play(log)
    second.play(msgspec.json.decode(journal, type=list[Heard]))
    assert first.envelopes == second.envelopes
    # Told once more, nothing new comes of it.
    assert first.play(log) == []


@EXAMPLES
@given(TURNS, CHANCE, KILL)
@pytest.mark.req("adapter.text")
@pytest.mark.req("adapter.user")
def test_every_word_is_told_once_and_in_its_place(
    turns: list[Plan], chance: Random, kill_at: int | None
) -> None:
    log = log_of(turns, chance, kill_at)
    session = Session()
    session.play(log)
    said = [h.what.said for h in log if isinstance(h.what, Began) and h.what.said]
    steered = [h.what.text for h in log if isinstance(h.what, Steered)]
    repeated = [e.ev.text for e in session.envelopes if e.role == "user" and isinstance(e.ev, Text)]
    assert Counter(repeated) == Counter(said + steered)
    spoken = Counter(
        letter
        for h in log
        if isinstance(h.what, Piece) and h.parent is None and not h.guest
        for letter in h.what.text
        if letter in "ab"
    )
    told = Counter(
        letter
        for e in session.envelopes
        if isinstance(e.ev, Text) and e.role == "agent" and not e.subagent
        for letter in e.ev.text
        if letter in "ab"
    )
    assert told == spoken


def closing(envelopes: list[Envelope]) -> list[Envelope]:
    """Those before and with the end of the turn, from where nothing but ends comes; what has waited
    for it may follow."""
    over = next(n for n, envelope in enumerate(envelopes) if isinstance(envelope.ev, TurnEnd))
    ends: list[Envelope] = []
    for envelope in reversed(envelopes[: over + 1]):
        if not isinstance(envelope.ev, ToolCallEnd | Stop | TurnEnd):
            break
        ends.insert(0, envelope)
    return ends


@EXAMPLES
@given(TURNS.map(lambda turns: turns[:1]), CHANCE, st.integers(0, 60))
@pytest.mark.req("adapter.kill")
def test_a_killed_turn_closes_from_the_inside_out(
    turns: list[Plan], chance: Random, kill_at: int
) -> None:
    log = log_of([replace(turns[0], guest="")], chance)
    session = Session()
    session.play(h for h in log[:kill_at] if not (h.parent is None and isinstance(h.what, Ended)))
    if not session.order.turn:
        return
    depths = depths_of(session.envelopes)
    made = {e.ev.call: e.subagent for e in session.envelopes if isinstance(e.ev, ToolCallStart)}
    open_calls, active = dict(session.order.calls), set(session.order.agents)
    ends = closing(session.hear(Ended(Reason.CANCELLED), log[0].run))
    assert isinstance(ends[-1].ev, TurnEnd)
    assert ends[-1].ev.status == "cancelled"
    assert {e.ev.call for e in ends if isinstance(e.ev, ToolCallEnd)} == set(open_calls)
    assert {e.subagent for e in ends if isinstance(e.ev, Stop)} == active
    # Deeper before shallower, and at one depth calls before the agents that made them.
    rank = [
        (-depths[e.subagent], isinstance(e.ev, Stop))
        for e in ends[:-1]
        if not isinstance(e.ev, ToolCallEnd) or made[e.ev.call] == e.subagent
    ]
    assert rank == sorted(rank)


def depths_of(envelopes: list[Envelope]) -> dict[str, int]:
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
    turns: list[Plan], chance: Random, kill_at: int | None
) -> None:
    log = log_of(turns, chance, kill_at)
    fed = list(log)
    streamed = [msgspec.structs.replace(h, is_streamed=True) for h in log if h.parent is None]
    session = Session()
    while fed or streamed:
        source = chance.choice([s for s in (fed, streamed) if s])
        session.play([source.pop(0)])
    assert is_closed(session)
    repeated = [e.ev.text for e in session.envelopes if e.role == "user" and isinstance(e.ev, Text)]
    said = [h.what.said for h in log if isinstance(h.what, Began) and h.what.said]
    assert not Counter(said) - Counter(repeated)


@EXAMPLES
@given(TURNS, CHANCE, KILL, st.integers(0, 10))
@pytest.mark.req("adapter.missed")
def test_a_feed_that_loses_elements_breaks_nothing(
    turns: list[Plan], chance: Random, kill_at: int | None, loses: int
) -> None:
    session = Session()
    missed = 0
    for heard in log_of(turns, chance, kill_at):
        if chance.randrange(20) < loses:
            missed += 1
        else:
            session.play([msgspec.structs.replace(heard, missed=missed)])
            missed = 0
    session.take(session.adapter.lose(10_000))
    assert is_closed(session)


@EXAMPLES
@given(TURNS, CHANCE, st.lists(st.integers(0, 80), max_size=3), st.booleans())
@pytest.mark.req("adapter.lost")
@pytest.mark.req("adapter.resumed")
def test_connections_lost_and_gateways_restarted_at_any_point_break_nothing(
    turns: list[Plan], chance: Random, points: list[int], is_restarted: bool
) -> None:
    session = Session()
    for number, heard in enumerate(log_of(turns, chance)):
        if number in points:
            if is_restarted:
                session.adapter = Adapter(SESSION, history=session.envelopes)
            elif chance.random() < 0.5:
                session.take(session.adapter.lose(2000 + number))
            else:
                session.adapter.kill()
        session.play([heard])
    session.take(session.adapter.lose(10_000))
    assert is_closed(session)


@EXAMPLES
@given(TURNS, CHANCE, st.integers(0, 80))
@pytest.mark.req("adapter.resumed")
def test_a_gateway_that_comes_back_at_once_goes_on_as_if_it_had_never_been_away(
    turns: list[Plan], chance: Random, point: int
) -> None:
    """But for words that were not journalled yet, and work in the background of a task: envelopes
    do not say which run a task is, and calls do only where no two have one id."""
    straight, broken = Session(), Session()
    turns = [in_foreground(turn, but=True) for turn in turns]
    log = World(chance, has_unique_ids=True).carry_out(turns)
    for number, heard in enumerate(log):
        if number == point:
            broken.adapter = Adapter(SESSION, history=broken.envelopes)
        for session in (straight, broken):
            session.play([heard])
    assert Counter(outline(broken.envelopes)) == Counter(outline(straight.envelopes))


def in_foreground(plan: Plan, *, but: bool = False) -> Plan:
    """All of its work, `but` for that of its own run."""
    steps = [
        replace(
            step,
            work=tuple(
                replace(
                    work,
                    tasks=tuple(map(in_foreground, work.tasks)),
                    in_background=but and work.in_background,
                )
                for work in step.work
            ),
        )
        for step in plan.steps
    ]
    return replace(plan, steps=tuple(steps))


def outline(envelopes: list[Envelope]) -> list[tuple[str, str, str]]:
    """What begins and ends, and where."""
    kinds = (ToolCallStart, ToolCallEnd, Start, Stop, TurnStart, TurnEnd)
    return [
        (type(e.ev).__name__ + getattr(e.ev, "call", ""), e.turn, e.subagent)
        for e in envelopes
        if isinstance(e.ev, kinds)
    ]
