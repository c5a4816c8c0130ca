"""The tree of agents that work for a turn."""

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
    drawing = DrawnTranscript()
    drawing.handle_events(start_event(), tool_start_event(make_tool_call("delegate", TASKS)))
    return drawing


@pytest.mark.req("chat.show.tree")
def test_delegated_runs_are_a_tree_under_their_call() -> None:
    drawing = draw_delegation().handle_feed_events(
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
    drawing.now += 3
    assert drawing.live_lines == [
        "⠋ delegate(2 tasks)  3.0s",
        "  ├─ ⠋ worker  3.0s  count shells  delegate(deeper)",
        "  │  └─ ⠋ helper  3.0s  deeper  delegate(deeper)",
        "  │     └─ ⠋ mate  3.0s  deeper  thinking",
        "  └─ ⠋ scout  3.0s  tides  bash(ls)",
    ]
    drawing.width = 30
    assert all(len(line) <= 30 for line in drawing.live_lines)


@pytest.mark.req("chat.show.tree")
def test_tasks_are_shown_in_their_order_not_by_start() -> None:
    drawing = draw_delegation().handle_feed_events(
        feed_event(wire.TEXT_START, "k2", agent="scout", parent=("r1", "c1", 1)),
        feed_event(wire.TEXT_START, "k1", parent=("r1", "c1", 0)),
    )
    assert [line.split()[2] for line in drawing.live_lines[1:]] == ["worker", "scout"]


@pytest.mark.req("chat.show.tree")
def test_a_run_shows_its_current_activity_and_then_its_outcome() -> None:
    drawing = draw_delegation()
    parent = ("r1", "c1", 0)

    def doing(kind: "wire.AgentEventKind.ValueType", content: str = "", call_id: str = "x") -> str:
        tools = (
            [make_tool_call("bash", '{"command": "ls"}', "x")] if kind == wire.TOOL_START else []
        )
        drawing.handle_feed_events(
            feed_event(kind, "k1", parent=parent, tools=tools, content=content, call_id=call_id)
        )
        return drawing.live_lines[1].partition("count shells")[2].strip()

    assert doing(wire.THINKING_DELTA) == "thinking"
    assert doing(wire.TOOL_START) == "bash(ls)"
    assert doing(wire.TOOL_PROGRESS, "\x1b[32m3/10\x1b[0m") == "bash(ls)  3/10"
    assert doing(wire.TOOL_RESULT) == "waiting"
    assert doing(wire.ASK_USER, "Colour") == "asks: Colour"
    assert doing(wire.TEXT_DELTA) == "writing"
    assert doing(wire.DONE) == "1 tool"


@pytest.mark.req("chat.show.tree")
def test_a_finished_tree_shows_the_outcome_of_each_task() -> None:
    drawing = draw_delegation().handle_feed_events(
        feed_event(wire.TEXT_START, "k1", parent=("r1", "c1", 0)),
        feed_event(wire.DONE, "k1", parent=("r1", "c1", 0)),
        after=2.0,
    )
    output = [{"result": "12", "error": None}, {"result": None, "error": "no such\nbeach"}]
    drawing.handle_events(tool_result_event(json.dumps(output)), tools_complete_event())
    assert drawing.printed_lines == [
        "✓ delegate(2 tasks)  3.2s",
        "  ├─ ✓ worker  count shells  2.0s",
        "  └─ ✗ scout  tides  no such beach",
    ]
    assert drawing.live_lines == []


@pytest.mark.req("chat.show.tree")
def test_background_tasks_are_shown_until_they_are_done() -> None:
    tasks = json.dumps({"tasks": [{"message": "count shells"}], "background": True})
    drawing = DrawnTranscript()
    drawing.handle_events(start_event(), tool_start_event(make_tool_call("delegate", tasks)))
    drawing.handle_feed_events(feed_event(wire.TEXT_START, "k1", parent=("r1", "c1", 0)))
    drawing.handle_events(
        tool_result_event('[{"agent": "worker", "task_id": "x"}]'),
        tools_complete_event(),
        end_event(),
    )
    assert drawing.printed_lines == [
        "✓ delegate(count shells)  3.2s",
        "  └─ … worker  count shells  goes on in the background",
    ]
    assert drawing.live_lines == ["in the background", "  └─ ⠋ worker  0.0s  count shells  writing"]
    drawing.handle_feed_events(feed_event(wire.DONE, "k1", parent=("r1", "c1", 0)), after=5.0)
    assert drawing.printed_lines[-1] == "✓ worker  5.0s  count shells  done"
    assert drawing.live_lines == []


@pytest.mark.req("chat.show.tree")
def test_unrelated_runs_are_not_shown() -> None:
    drawing = draw_delegation().handle_feed_events(
        feed_event(wire.TEXT_START, "other", parent=None),
        feed_event(wire.TEXT_START, "theirs", parent=("other", "c1", 0)),
        feed_event(wire.DONE, "unseen", parent=("r1", "c1", 0)),
    )
    assert drawing.live_lines == ["⠋ delegate(2 tasks)  0.0s"]


@pytest.mark.req("chat.show.order")
def test_feed_events_ahead_of_the_stream_are_not_lost() -> None:
    drawing = DrawnTranscript()
    drawing.handle_feed_events(feed_event(wire.TEXT_START, "k1", parent=("r1", "c1", 0)))
    drawing.handle_events(start_event(), tool_start_event(make_tool_call("delegate", TASKS)))
    assert len(drawing.live_lines) == 2


@pytest.mark.req("chat.show.bounded")
def test_the_number_of_remembered_runs_is_bounded() -> None:
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
