"""Rendering any agent as TOML and parsing it again gives the same agent."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crabtalk.cli.agent_toml import parse_agent, render_agent, render_prompt
from crabtalk.cli.errors import CommandError

texts = st.text(st.characters(exclude_categories=["Cs"]))
plain: st.SearchStrategy[Any] = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
servers = st.fixed_dictionaries(
    {"name": texts, "command": texts, "args": st.lists(texts), "env": st.dictionaries(texts, texts)}
)
settings = st.fixed_dictionaries(
    {
        "description": texts,
        "model": texts,
        "max_iterations": st.integers(1, 1000),
        "thinking": st.booleans(),
        "tools": st.lists(texts),
        "hooks": st.dictionaries(texts, st.dictionaries(texts, plain, max_size=3), max_size=3),
        "mcps": st.lists(servers, max_size=3),
    }
)


@given(settings, st.none() | texts)
@pytest.mark.req("cli.agents.show")
def test_a_rendered_agent_is_parsed_as_the_same(
    document: dict[str, Any], prompt: str | None
) -> None:
    parsed, parsed_prompt = parse_agent(render_agent(document, prompt))
    assert parsed_prompt == prompt
    # Empty hooks and mcps are not written.
    assert {"hooks": {}, "mcps": [], **parsed} == document


@given(texts)
@example('ends in "')
@example('"""\n""""')
@example("a\\\nb\r\n\x7f\x00\t")
@pytest.mark.req("cli.agents.show")
def test_any_prompt_survives_rendering(prompt: str) -> None:
    assert tomllib.loads(f"prompt = {render_prompt(prompt)}") == {"prompt": prompt}


def test_a_prompt_of_several_lines_is_a_multiline_string() -> None:
    assert render_prompt("You are crab.\nBe brief.") == '"""\nYou are crab.\nBe brief."""'


def test_json_nulls_are_left_out() -> None:
    page = render_agent({"mcps": [{"name": "a", "command": "b", "url": None}]}, None)
    assert page == '\n[[mcps]]\nname = "a"\ncommand = "b"\n'


def test_a_page_may_be_json() -> None:
    page = json.dumps({"prompt": "You are crab.", "model": "m"})
    assert parse_agent(page) == ({"model": "m"}, "You are crab.")


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("model = ", "that is not valid TOML: "),
        ("{", "that is not valid JSON: "),
        ("prompt = 5", "prompt must be a text; "),
        ("since = 2026-01-01", "an agent's settings hold no dates and times; "),
    ],
)
@pytest.mark.req("cli.agents.edit.wrong")
def test_an_invalid_page_gives_one_error(page: str, sentence: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_agent(page)
    assert str(caught.value).startswith(sentence)
