"""Tool calls in a few words."""

import json
from typing import Any

import pytest

from crabtalk.chat.tool_calls import ChatToolCall


def make_call(name: str, output: str = "", **arguments: Any) -> ChatToolCall:
    made = ChatToolCall("c1", name, json.dumps(arguments) if arguments else "")
    made.output = output
    return made


@pytest.mark.req("chat.show.call")
@pytest.mark.parametrize(
    ("made", "about"),
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
def test_a_call_is_known_by_what_it_is_about(made: ChatToolCall, about: str) -> None:
    assert made.summary == about


def test_however_long_its_arguments_are_the_label_is_short() -> None:
    assert len(make_call("bash", command="x" * 100_000).summary) <= 200
    assert len(make_call("other", a="x" * 100_000, b=["y"] * 10_000).summary) <= 200
    assert len(ChatToolCall("c1", "bash", "x" * 3_000_000).summary) <= 200
    assert len(ChatToolCall("c1", "bash", "[" * 900_000).summary) <= 200


@pytest.mark.req("chat.show.output")
def test_colours_of_other_programs_are_left_out_whichever_tool_ran_them() -> None:
    assert make_call("npm__test", "\x1b[32mok\x1b[39m\n").display_output == "ok\n"


@pytest.mark.req("chat.show.output")
def test_of_a_command_what_it_printed_is_shown() -> None:
    def shown(is_error: bool = False, before: str = "", **outcome: Any) -> str:
        made = make_call("bash", before + json.dumps(outcome), command="x")
        made.is_error = is_error
        return made.display_output

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
def test_answers_stand_with_their_questions() -> None:
    questions = [{"question": "Which?"}, {"question": "How many?"}]
    made = make_call("ask_user", '{"Which?": "blue", "Other": "x"}', questions=questions)
    assert made.pair_answers() == [("Which?", "blue"), ("How many?", "")]
    made = make_call("ask_user", "the blue one", questions=questions)
    assert made.pair_answers() == [("Which? / How many?", "the blue one")]


@pytest.mark.req("chat.show.tree")
def test_tasks_end_well_or_not_or_go_on() -> None:
    tasks = [{"message": "a"}, {"message": "b", "agent": "scout"}]
    output = [{"agent": "w", "result": "1", "error": None}, {"result": None, "error": "gone"}]
    made = make_call("delegate", json.dumps(output), tasks=tasks)
    assert made.tasks == [("worker", "a"), ("scout", "b")]
    assert made.parse_task_results() == [(False, ""), (True, "gone")]
    made = make_call("delegate", json.dumps([{"task_id": "x"}] * 2), tasks=tasks)
    assert made.parse_task_results() == [(None, ""), (None, "")]
    for unreadable in ("", "[]", "{}", "nonsense", "[1]"):
        assert make_call("delegate", unreadable, tasks=tasks).parse_task_results() is None
