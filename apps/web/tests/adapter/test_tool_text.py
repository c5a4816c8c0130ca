"""Texts about tool calls: names, titles, descriptions and arguments, whatever the model writes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk_web.adapter import tool_text
from crabtalk_web.adapter.delegation import parse_delegation, parse_outcomes
from crabtalk_web.adapter.tool_text import (
    MAX_ARGUMENTS,
    MAX_DESCRIPTION,
    MAX_RESULT,
    MAX_TITLE,
    add_compat_arguments,
    build_description,
    build_title,
    escape_markdown,
    excerpt_text,
    format_compat_name,
    format_inline_code,
    format_tool_name,
    parse_arguments,
)
from crabtalk_web.stream import Envelope, ToolCallStart, derive_id, encode_envelope


@pytest.mark.parametrize(
    ("name", "strict", "compat"),
    [
        ("bash", "bash", "Bash"),
        ("read", "read", "Read"),
        ("edit", "edit", "Edit"),
        ("task", "task", "Agent"),
        ("ask_user", "ask-user", "AskUserQuestion"),
        ("skill", "skill", "Skill"),
        ("search_sessions", "search-sessions", "search_sessions"),
        ("github__list_issues", "mcp-github-list-issues", "mcp__github__list_issues"),
        ("GetWeather", "getweather", "GetWeather"),
        ("__init__", "init", "__init__"),
        ("", "tool", "tool"),
        ("🦀\n`", "tool", "🦀 `"),
        ("Größe_Ändern", "groe-andern", "Größe_Ändern"),
        ("x" * 999, "x" * 64, "x" * 64),
    ],
)
@pytest.mark.req("adapter.tools.names")
def test_a_tool_has_a_name_in_lower_case_with_hyphens(name: str, strict: str, compat: str) -> None:
    assert format_tool_name(name) == strict
    assert format_compat_name(name) == compat


@pytest.mark.parametrize(
    ("name", "args", "shown"),
    [
        ("bash", {"command": "ls\n  -l"}, "Run `ls -l`"),
        ("bash", {"command": "echo `date`"}, "Run `` echo `date` ``"),
        ("bash", {"command": 7}, "Run"),
        ("read", {"path": "/a b"}, "Read `/a b`"),
        ("edit", {"path": "a.py"}, "Edit `a.py`"),
        ("skill", {"name": "dig"}, "Skill `dig`"),
        ("remember", {"name": "beach"}, "Remember `beach`"),
        ("forget", {"name": "beach"}, "Forget `beach`"),
        ("recall", {"query": "sand"}, "Recall `sand`"),
        ("search_sessions", {"query": "sand"}, "Search sessions for `sand`"),
        ("search", {"query": "sand"}, "Search for `sand`"),
        ("fetch", {"url": "https://x.example"}, "Fetch `https://x.example`"),
        ("set_title", {"title": "Sand"}, "Title `Sand`"),
        ("ask_user", {"questions": [{"header": "Sure", "question": "Really?"}]}, "Sure"),
        ("ask_user", {"questions": [{"question": "*Really*?"}]}, r"\*Really\*?"),
        ("ask_user", {"questions": ["what"]}, "Question"),
        ("github__list", {}, "github.list"),
        ("get_weather", {"city": "Rome"}, "Call `get_weather`"),
        (" ", {}, "Call a tool"),
    ],
)
@pytest.mark.req("adapter.tools.titles")
def test_a_title_says_what_is_done_to_what(name: str, args: dict[str, Any], shown: str) -> None:
    assert build_title(name, args) == shown


@pytest.mark.req("adapter.tools.titles")
def test_a_description_is_longer_than_the_title() -> None:
    command = "echo " + "word " * 60
    assert build_title("bash", {"command": command}).endswith("…`")
    assert build_description("bash", {"command": command}) == f"Run `{command.strip()}`"
    assert (
        build_description("get_weather", {"city": "Rome"})
        == 'Call `get_weather` with `{"city":"Rome"}`'
    )
    assert build_description("get_weather", {}) == "Call `get_weather`"
    arguments = {"questions": [{"header": "Sure", "question": "Really?"}]}
    assert build_description("ask_user", arguments) == "Really?"


@pytest.mark.req("adapter.tools.titles")
@given(st.text(max_size=200) | st.sampled_from(list(tool_text.PHRASES)), st.text(max_size=700))
def test_any_tool_call_can_be_shown(name: str, text: str) -> None:
    args = dict.fromkeys(("command", "path", "name", "query", "questions"), text)
    start = ToolCallStart(
        call="k",
        name=format_tool_name(name),
        title=build_title(name, args),
        description=build_description(name, args),
        args=args,
    )
    assert encode_envelope(
        Envelope(id=derive_id(1), time=1, role="agent", turn=derive_id(2), ev=start)
    )
    assert len(start.title) <= MAX_TITLE
    assert len(start.description) <= MAX_DESCRIPTION
    assert format_compat_name(name)
    assert add_compat_arguments(name, args)


@pytest.mark.req("adapter.tools.titles")
@given(st.text(max_size=100), st.integers(12, 90))
def test_texts_fit_their_limit_on_one_line(text: str, room: int) -> None:
    for shown in (format_inline_code(text, room), escape_markdown(text or "x", room)):
        assert len(shown) <= room
        assert shown.isprintable()


@pytest.mark.req("adapter.tools.titles")
def test_markup_in_foreign_text_is_escaped() -> None:
    assert escape_markdown("<b>*x*_[y](z)", 80) == r"\<b\>\*x\*\_\[y\](z)"
    assert "`" not in escape_markdown("`" * 70, 80)
    assert format_inline_code("`" * 500, 80).count("`") == 2


# ── Arguments ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ('{"a": [1, null, {"b": 2.5}]}', {"a": [1, None, {"b": 2.5}]}),
        ("", {}),
        (" \n", {}),
        ("[1]", {"raw": "[1]"}),
        ("null", {"raw": "null"}),
        ('{"a": ', {"raw": '{"a": '}),
        ('{"a": NaN}', {"raw": '{"a": NaN}'}),
        ('{"a": 1e999}', {"raw": '{"a": 1e999}'}),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
    ],
)
@pytest.mark.req("adapter.tools.arguments")
def test_arguments_are_an_object_whatever_the_model_wrote(text: str, parsed: object) -> None:
    assert parse_arguments(text) == parsed


@pytest.mark.req("adapter.tools.arguments")
@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"path": "a.py", "new_string": "é" * 1_000_000}),
        json.dumps({"many": ["x" * 100] * 10_000}),
        "[" * 100_000,
        '{"a":' * 50_000 + "1" + "}" * 50_000,
        "x" * 1_000_000,
    ],
)
def test_arguments_of_a_megabyte_are_shortened(text: str) -> None:
    short = parse_arguments(text)
    assert len(json.dumps(short, ensure_ascii=False).encode()) <= MAX_ARGUMENTS + 100
    if "path" in text[:10]:
        assert short["path"] == "a.py"


@pytest.mark.req("adapter.tools.result")
@given(st.text(max_size=300), st.integers(100, 300))
def test_an_excerpt_has_the_beginning_and_the_end_within_its_limit(text: str, most: int) -> None:
    short = excerpt_text(text, most)
    assert len(short.encode()) <= most
    if len(text.encode()) <= most:
        assert short == text
    else:
        assert short[:5] == text[:5]
        assert short[-5:] == text[-5:]
        assert "left out" in short


def test_an_excerpt_of_a_result_is_whole_up_to_its_bound() -> None:
    assert excerpt_text("x" * MAX_RESULT, MAX_RESULT) == "x" * MAX_RESULT
    assert len(excerpt_text("x" * (MAX_RESULT + 1), MAX_RESULT)) <= MAX_RESULT


@pytest.mark.req("adapter.compat")
def test_readers_that_draw_tools_by_their_names_find_the_keys_they_look_for() -> None:
    assert add_compat_arguments("read", {"path": "/a"}) == {"path": "/a", "file_path": "/a"}
    assert add_compat_arguments("bash", {"command": "ls"}) == {"command": "ls"}
    arguments = {
        "questions": [{"question": "Q", "options": ["a", {"label": "b"}], "multi_select": True}]
    }
    assert add_compat_arguments("ask_user", arguments) == {
        "questions": [
            {
                "question": "Q",
                "header": "",
                "options": [{"label": "a", "description": ""}, {"label": "b"}],
                "multiSelect": True,
            }
        ]
    }


# ── Delegation ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("adapter.delegation")
@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"tasks": []}', '{"tasks": [{}]}', '{"tasks": "x"}', '{"tasks": [1]}', "[" * 9999,
     json.dumps({"tasks": [{"message": "x"}] * 65})],
)  # fmt: skip
def test_a_delegate_call_with_invalid_arguments_is_a_plain_call(text: str) -> None:
    assert parse_delegation("delegate", text) is None
    assert parse_delegation("bash", '{"tasks": [{"message": "x"}]}') is None


@pytest.mark.req("adapter.delegation")
@pytest.mark.parametrize("text", ["", "[]", "boom", '[{"agent": "a", "task_id": "t"}]', "[" * 9999])
def test_an_output_without_outcomes_is_the_result_of_each_task(text: str) -> None:
    (outcome,) = parse_outcomes(text, 1)
    assert (outcome.result, outcome.error) == (text, None)
