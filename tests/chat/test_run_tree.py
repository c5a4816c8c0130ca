"""The agents that work for a turn, as a tree."""

import json

import pytest

from crabtalk.chat.run_tree import MAX_RUNS, DelegationTree
from crabtalk.chat.theme import PLAIN_THEME
from crabtalk.protocol import wire
from tests.chat.transcript_drawing import (
    DrawnTranscript,
    end_event,
    feed_event,
    make_tool_call,
    start_event,
    strip_escapes,
    tool_result_event,
    tool_start_event,
    tools_complete_event,
)

TASKS = json.dumps({"tasks": [{"message": "count shells"}, {"agent": "scout", "message": "tides"}]})
DEEPER = json.dumps({"tasks": [{"message": "deeper"}]})


def draw_delegation() -> DrawnTranscript:
    drawn = DrawnTranscript()
    drawn.handle_events(start_event(), tool_start_event(make_tool_call("delegate", TASKS)))
    return drawn


@pytest.mark.req("chat.show.tree")
def test_agents_at_work_are_a_tree_under_the_call_that_set_them_off() -> None:
    drawn = draw_delegation().handle_feed_events(
        feed_event(wire.TEXT_START, "k1", agent="worker:ab12", parent=("r1", "c1", 0)),
        feed_event(
            wire.TOOL_START,
            "k1",
            agent="worker:ab12",
            parent=("r1", "c1", 0),
            tools=[make_tool_call("delegate", DEEPER, "d1")],
        ),
        feed_event(
            wire.TOOL_START,
            "k3",
            agent="scout",
            parent=("r1", "c1", 1),
            tools=[make_tool_call("bash", '{"command": "ls"}', "x")],
        ),
        feed_event(
            wire.TOOL_START,
            "k2",
            agent="helper",
            parent=("k1", "d1", 0),
            tools=[make_tool_call("delegate", DEEPER, "e1")],
        ),
        feed_event(wire.THINKING_START, "k4", agent="mate", parent=("k2", "e1", 0)),
    )
    drawn.now += 3
    assert drawn.live_lines == [
        "⠋ delegate(2 tasks)  3.0s",
        "  ├─ ⠋ worker  3.0s  count shells  delegate(deeper)",
        "  │  └─ ⠋ helper  3.0s  deeper  delegate(deeper)",
        "  │     └─ ⠋ mate  3.0s  deeper  thinking",
        "  └─ ⠋ scout  3.0s  tides  bash(ls)",
    ]
    drawn.width = 30
    assert all(len(line) <= 30 for line in drawn.live_lines)


@pytest.mark.req("chat.show.tree")
def test_tasks_stand_in_the_order_they_were_given_whoever_began_first() -> None:
    drawn = draw_delegation().handle_feed_events(
        feed_event(wire.TEXT_START, "k2", agent="scout", parent=("r1", "c1", 1)),
        feed_event(wire.TEXT_START, "k1", parent=("r1", "c1", 0)),
    )
    assert [line.split()[2] for line in drawn.live_lines[1:]] == ["worker", "scout"]


@pytest.mark.req("chat.show.tree")
def test_what_an_agent_does_just_now_is_shown_and_what_it_did_when_it_is_done() -> None:
    drawn = draw_delegation()
    parent = ("r1", "c1", 0)

    def doing(kind: "wire.AgentEventKind.ValueType", content: str = "", call_id: str = "x") -> str:
        tools = (
            [make_tool_call("bash", '{"command": "ls"}', "x")] if kind == wire.TOOL_START else []
        )
        drawn.handle_feed_events(
            feed_event(kind, "k1", parent=parent, tools=tools, content=content, call_id=call_id)
        )
        return drawn.live_lines[1].partition("count shells")[2].strip()

    assert doing(wire.THINKING_DELTA) == "thinking"
    assert doing(wire.TOOL_START) == "bash(ls)"
    assert doing(wire.TOOL_PROGRESS, "\x1b[32m3/10\x1b[0m") == "bash(ls)  3/10"
    assert doing(wire.TOOL_RESULT) == "waiting"
    assert doing(wire.ASK_USER, "Colour") == "asks: Colour"
    assert doing(wire.TEXT_DELTA) == "writing"
    assert doing(wire.DONE) == "1 tool"


@pytest.mark.req("chat.show.tree")
def test_when_the_tasks_are_done_the_tree_says_how_they_ended() -> None:
    drawn = draw_delegation().handle_feed_events(
        feed_event(wire.TEXT_START, "k1", parent=("r1", "c1", 0)),
        feed_event(wire.DONE, "k1", parent=("r1", "c1", 0)),
        after=2.0,
    )
    output = [{"result": "12", "error": None}, {"result": None, "error": "no such\nbeach"}]
    drawn.handle_events(tool_result_event(json.dumps(output)), tools_complete_event())
    assert drawn.printed_lines == [
        "✓ delegate(2 tasks)  3.2s",
        "  ├─ ✓ worker  count shells  2.0s",
        "  └─ ✗ scout  tides  no such beach",
    ]
    assert drawn.live_lines == []


@pytest.mark.req("chat.show.tree")
def test_tasks_in_the_background_are_seen_until_they_are_done_and_then_said_to_be() -> None:
    tasks = json.dumps({"tasks": [{"message": "count shells"}], "background": True})
    drawn = DrawnTranscript()
    drawn.handle_events(start_event(), tool_start_event(make_tool_call("delegate", tasks)))
    drawn.handle_feed_events(feed_event(wire.TEXT_START, "k1", parent=("r1", "c1", 0)))
    drawn.handle_events(
        tool_result_event('[{"agent": "worker", "task_id": "x"}]'),
        tools_complete_event(),
        end_event(),
    )
    assert drawn.printed_lines == [
        "✓ delegate(count shells)  3.2s",
        "  └─ … worker  count shells  goes on in the background",
    ]
    assert drawn.live_lines == ["in the background", "  └─ ⠋ worker  0.0s  count shells  writing"]
    drawn.handle_feed_events(feed_event(wire.DONE, "k1", parent=("r1", "c1", 0)), after=5.0)
    assert drawn.printed_lines[-1] == "✓ worker  5.0s  count shells  done"
    assert drawn.live_lines == []


@pytest.mark.req("chat.show.tree")
def test_runs_of_others_are_not_shown() -> None:
    drawn = draw_delegation().handle_feed_events(
        feed_event(wire.TEXT_START, "other", parent=None),
        feed_event(wire.TEXT_START, "theirs", parent=("other", "c1", 0)),
        feed_event(wire.DONE, "nobody", parent=("r1", "c1", 0)),
    )
    assert drawn.live_lines == ["⠋ delegate(2 tasks)  0.0s"]


@pytest.mark.req("chat.show.order")
def test_a_feed_that_is_ahead_of_the_stream_is_not_lost() -> None:
    drawn = DrawnTranscript()
    drawn.handle_feed_events(feed_event(wire.TEXT_START, "k1", parent=("r1", "c1", 0)))
    drawn.handle_events(start_event(), tool_start_event(make_tool_call("delegate", TASKS)))
    assert len(drawn.live_lines) == 2


@pytest.mark.req("chat.show.bounded")
def test_however_many_runs_there_are_few_are_remembered() -> None:
    runs = DelegationTree(PLAIN_THEME)
    for number in range(3 * MAX_RUNS):
        runs.handle_event(
            feed_event(wire.TEXT_START, f"k{number}", parent=("r1", "c1", number)), 0.0
        )
    assert len(runs.list_runs_of_call("r1", "c1")) == MAX_RUNS
    circle = feed_event(
        wire.TOOL_START, "k1", parent=("k1", "d1", 0), tools=[make_tool_call("a", "", "d1")]
    )
    runs.handle_event(circle, 0.0)
    assert (
        len(strip_escapes(runs.render_tree(runs.list_runs_of_call("k1", "d1"), [], 80, 0.0))) < 20
    )
