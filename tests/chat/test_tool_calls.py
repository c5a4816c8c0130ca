"""Summaries of tool calls."""

import json
from typing import Any

import pytest

from crabtalk.chat.tool_calls import ChatToolCall


def make_call(name: str, output: str = "", **arguments: Any) -> ChatToolCall:
    call = ChatToolCall("c1", name, json.dumps(arguments) if arguments else "")
    call.output = output
    return call


@pytest.mark.req("chat.show.call")
@pytest.mark.parametrize(
    ("call", "summary"),
    [
        (make_call("bash", command="make test"), "make test"),
        (make_call("bash", command="  cd x\nmake"), "cd x …"),
        (make_call("edit", path="a.py", old_string="a", new_string="b"), "a.py"),
        (make_call("recall", query="tides"), "tides"),
        (make_call("delegate", tasks=[{"message": "count shells"}]), "count shells"),
        (make_call("delegate", tasks=[{"message": "a"}, {"message": "b"}]), "2 tasks"),
        (make_call("ask_user", questions=[{"question": "Which?", "header": "Colour"}]), "Colour"),
        (make_call("github__issues", repo="a/b", open=True, n=3), "repo=a/b, open=true, n=3"),
        (make_call("set_title"), ""),
        (ChatToolCall("c1", "bash", "{}"), ""),
        (ChatToolCall("c1", "bash", '{"command": "half'), '{"command": "half'),
        (ChatToolCall("c1", "bash", '["a"]'), '["a"]'),
        (ChatToolCall("c1", "bash", '{"command": 7}'), "command=7"),
        (ChatToolCall("c1", "bash", is_early=True), "…"),
        (make_call("bash", command="a\x1b[31m\tb"), "a\\x1b[31m b"),
        (make_call("delegate", tasks="none"), "tasks=none"),
        (make_call("delegate", tasks=[7]), ""),
        (make_call("ask_user", questions=7), ""),
    ],
)
def test_a_call_is_summarised_by_its_main_argument(call: ChatToolCall, summary: str) -> None:
    assert call.summary == summary


def test_the_summary_of_long_arguments_is_short() -> None:
    assert len(make_call("bash", command="x" * 100_000).summary) <= 200
    assert len(make_call("other", a="x" * 100_000, b=["y"] * 10_000).summary) <= 200
    assert len(ChatToolCall("c1", "bash", "x" * 3_000_000).summary) <= 200
    assert len(ChatToolCall("c1", "bash", "[" * 900_000).summary) <= 200


@pytest.mark.req("chat.show.output")
def test_colour_escapes_in_outputs_are_removed() -> None:
    assert make_call("npm__test", "\x1b[32mok\x1b[39m\n").display_output == "ok\n"


@pytest.mark.req("chat.show.output")
def test_for_a_command_its_output_is_shown() -> None:
    def shown(is_error: bool = False, before: str = "", **outcome: Any) -> str:
        call = make_call("bash", before + json.dumps(outcome), command="x")
        call.is_error = is_error
        return call.display_output

    assert shown(stdout="out\n", stderr="noise", exit_code=0) == "out"
    assert shown(stdout="\x1b[1;31mred\x1b[0m \x1b[38:5:9mtoo\x1b[m", exit_code=0) == "red too"
    assert shown(stdout="\x1b[2J\x1b]52;c;eA==\x07", exit_code=0) == "\x1b[2J\x1b]52;c;eA==\x07"
    assert shown(stdout="", stderr="err\n", exit_code=0) == "err"
    assert shown(stdout="out", stderr="err", exit_code=2) == "exit status 2\nerr\nout"
    failed = shown(True, "bash failed: it took long.\n", stdout="o", stderr="e", exit_code=-1)
    assert failed == "bash failed: it took long.\ne\no"
    assert make_call("bash", "permission denied: {no}").display_output == "permission denied: {no}"
    assert make_call("bash", '{"a": 1}').display_output == '{"a": 1}'
    assert (
        make_call("read", '{"stdout": "x", "exit_code": 0}').display_output
        == '{"stdout": "x", "exit_code": 0}'
    )


@pytest.mark.req("chat.show.ask")
def test_answers_are_paired_with_their_questions() -> None:
    questions = [{"question": "Which?"}, {"question": "How many?"}]
    call = make_call("ask_user", '{"Which?": "blue", "Other": "x"}', questions=questions)
    assert call.pair_answers() == [("Which?", "blue"), ("How many?", "")]
    call = make_call("ask_user", "the blue one", questions=questions)
    assert call.pair_answers() == [("Which? / How many?", "the blue one")]


@pytest.mark.req("chat.show.tree")
def test_tasks_succeed_fail_or_go_on() -> None:
    tasks = [{"message": "a"}, {"message": "b", "agent": "scout"}]
    output = [{"agent": "w", "result": "1", "error": None}, {"result": None, "error": "gone"}]
    call = make_call("delegate", json.dumps(output), tasks=tasks)
    assert call.tasks == [("worker", "a"), ("scout", "b")]
    assert call.parse_task_results() == [(False, ""), (True, "gone")]
    call = make_call("delegate", json.dumps([{"task_id": "x"}] * 2), tasks=tasks)
    assert call.parse_task_results() == [(None, ""), (None, "")]
    for unreadable in ("", "[]", "{}", "nonsense", "[1]"):
        assert make_call("delegate", unreadable, tasks=tasks).parse_task_results() is None
