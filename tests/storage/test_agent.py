"""Agents as values: parsing, refusals and their texts, and masked secrets."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.storage.agent import (
    MASK,
    Agent,
    AgentError,
    McpServerConfig,
    check_agent_name,
    find_unknown_keys,
    parse_agent,
    render_settings,
    unmask_settings,
)

GITHUB = {"name": "github", "command": "github-mcp"}


def read_crab(**settings: Any) -> Agent:
    return parse_agent("crab", {"prompt": "You are crab.", **settings})


@pytest.mark.parametrize("name", ["crab", "a b", "Kräbbe", "蟹" * 64, "-", "a:b", "x" * 64, "'"])
def test_a_name_can_be_any_text_that_a_file_name_can(name: str) -> None:
    check_agent_name(name)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "is empty; give it one"),
        ("x" * 65, "too long; use at most 64 characters"),
        ("🦀" * 64, "too long"),
        ("a/b", "must not hold any of"),
        ("a\\b", "must not hold"),
        ("..", "must not hold"),
        ("a.b", "must not hold"),
        ("[a", "must not hold"),
        ("a]", "must not hold"),
        ('a"', "must not hold"),
        ("a\nb", "cannot be shown"),
        ("a\0", "cannot be shown"),
        ("a\x7f", "cannot be shown"),
        ("a\u2028b", "cannot be shown"),
        ("\udcff", "cannot be shown"),
        (" a", "white space"),
        ("a\u3000", "white space"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_with_what_to_do(name: str, sentence: str) -> None:
    with pytest.raises(AgentError, match=sentence):
        check_agent_name(name)
    with pytest.raises(AgentError, match=sentence):
        parse_agent(name, {"prompt": "p"})


@given(st.text())
def test_a_name_that_passes_stays_one_file_in_its_directory(name: str) -> None:
    try:
        check_agent_name(name)
    except AgentError as error:
        str(error).encode()  # can be sent and logged, whatever the name was
    else:
        assert len(f".{name}.toml.4194304.new".encode()) <= 255
        assert not {"/", ".", "\0"} & set(name)


def test_a_prompt_is_all_an_agent_needs() -> None:
    assert read_crab() == Agent(name="crab", prompt="You are crab.")
    assert parse_agent("crab", {}, "Be brief.").prompt == "Be brief."
    assert parse_agent("crab", {"prompt": "old"}, "new").prompt == "new"


@pytest.mark.parametrize("prompt", [None, "", " \n\t"])
def test_an_agent_without_a_prompt_is_refused(prompt: str | None) -> None:
    with pytest.raises(AgentError, match=r"prompt is (missing|empty); write"):
        parse_agent("crab", {"prompt": prompt})
    if prompt is not None:
        with pytest.raises(AgentError, match="prompt is empty"):
            parse_agent("crab", {"prompt": "one that is not meant"}, prompt)


def test_all_settings_are_parsed() -> None:
    server = {
        **GITHUB,
        "args": ["-v"],
        "env": {"TOKEN": "t"},
        "auto_restart": False,
        "idle_timeout": 60,
    }
    agent = read_crab(
        description="d",
        model="m",
        max_iterations=1000,
        tool_choice="bash",
        thinking=True,
        tools=["bash"],
        skills=["s"],
        approve=["mcp:*"],
        compact_tool_max_len=0,
        hooks={"bash": {"deny": ["rm"], "timeout": 1.5}},
        mcps=[server, {"name": "far", "url": "https://h.example/mcp", "auth": "Bearer b"}],
    )
    assert agent == Agent(
        name="crab",
        prompt="You are crab.",
        description="d",
        model="m",
        max_iterations=1000,
        tool_choice="bash",
        thinking=True,
        tools=("bash",),
        skills=("s",),
        approve=("mcp:*",),
        compact_tool_max_len=0,
        hooks={"bash": {"deny": ["rm"], "timeout": 1.5}},
        mcps=(
            McpServerConfig("github", "github-mcp", ("-v",), {"TOKEN": "t"}, "", "", False, 60.0),
            McpServerConfig("far", url="https://h.example/mcp", auth="Bearer b"),
        ),
    )


def test_null_means_the_default() -> None:
    settings = dict.fromkeys(render_settings(read_crab()))
    assert read_crab(**settings) == read_crab()
    server = dict.fromkeys(msgspec.structs.asdict(McpServerConfig("x")))
    assert read_crab(mcps=[{**server, **GITHUB}]) == read_crab(mcps=[GITHUB])
    assert read_crab(hooks={"bash": None, "os": {"a": None}}) == read_crab(hooks={"os": {}})
    assert read_crab(mcps=[{**GITHUB, "env": {"A": None}, "url": ""}]) == read_crab(mcps=[GITHUB])


def test_a_tool_can_be_chosen_as_openai_spells_it() -> None:
    choice = {"type": "function", "function": {"name": "bash"}}
    assert read_crab(tool_choice=choice).tool_choice == "bash"
    assert read_crab(tool_choice="").tool_choice == "auto"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("description", 1, "description must be a string"),
        ("model", ["m"], "model must be a string"),
        ("prompt", 5, "prompt must be a string"),
        ("prompt", "half \ud83e", "prompt holds a NUL or half a character"),
        ("prompt", "a\0", "prompt holds a NUL"),
        ("max_iterations", 0, "max_iterations must be a whole number from 1 to 1000"),
        ("max_iterations", 1001, "from 1 to 1000"),
        ("max_iterations", True, "whole number"),
        ("max_iterations", 1.0, "whole number"),
        ("max_iterations", "16", "whole number"),
        ("compact_tool_max_len", -1, "compact_tool_max_len must be a whole number from 0"),
        ("compact_tool_max_len", 2**63, "compact_tool_max_len must be a whole number"),
        ("thinking", 1, "thinking must be true or false"),
        ("thinking", "true", "thinking must be true or false"),
        ("tools", "bash", "tools must be a list of strings"),
        ("skills", [1], "skills must be a list of strings"),
        ("approve", [None], "approve must be a list of strings"),
        ("tool_choice", {"type": "function"}, 'tool_choice must be "auto"'),
        ("tool_choice", {"type": "function", "function": {"name": ""}}, "name of a tool"),
        ("tool_choice", 1, "tool_choice must be"),
        ("hooks", [], r"hooks must hold a table for each hook: write \[hooks.bash\]"),
        ("hooks", {"os": 1}, r"hooks.os must be a table: write \[hooks.os\]"),
        ("hooks", {"os": {"a": float("nan")}}, "hooks.os.a must be text, a number"),
        ("hooks", {"os": {"a": [None]}}, "hooks.os.a must be text"),
        ("hooks", {"os": {"a": 2**63}}, "hooks.os.a must be a whole number"),
        ("hooks", {"os": {"\ud800": 1}}, "a name in hooks.os holds a NUL or half"),
        ("mcps", {}, r"mcps must be a list of tables: write \[\[mcps\]\]"),
        ("mcps", ["x"], "number 1 of mcps must be a table"),
        ("mcps", [{"command": "c"}], "number 1 of mcps has no name; add one"),
        ("mcps", [{"name": 5}], "name of number 1 of mcps must be a string"),
        ("mcps", [{"name": " "}], "name of number 1 of mcps is empty"),
        ("mcps", [GITHUB, GITHUB], "two servers in mcps are called 'github'; names must differ"),
        ("mcps", [{"name": "x"}], "mcps 'x' has neither command nor url; write one"),
        ("mcps", [{**GITHUB, "url": "ftp://h"}], "url of mcps 'github' must be an address"),
        ("mcps", [{**GITHUB, "url": "http://"}], "starts with http:// or https://"),
        ("mcps", [{**GITHUB, "url": "http://["}], "starts with http://"),
        ("mcps", [{**GITHUB, "url": "http://a b"}], "starts with http://"),
        ("mcps", [{**GITHUB, "url": "http://a:99999"}], "starts with http://"),
        ("mcps", [{**GITHUB, "auth": "a\r\nX: y"}], "auth of mcps 'github' must be one line"),
        ("mcps", [{**GITHUB, "args": "-v"}], "args of mcps 'github' must be a list of strings"),
        ("mcps", [{**GITHUB, "env": []}], "env of mcps 'github' must be a table of strings"),
        ("mcps", [{**GITHUB, "env": {"A": 1}}], "A in env of mcps 'github' must be a string"),
        ("mcps", [{**GITHUB, "env": {"A=B": ""}}], "write the name of a variable"),
        ("mcps", [{**GITHUB, "auto_restart": 0}], "auto_restart of mcps 'github' must be true"),
        ("mcps", [{**GITHUB, "idle_timeout": 0}], "number of seconds above zero"),
        ("mcps", [{**GITHUB, "idle_timeout": True}], "idle_timeout .* number of seconds"),
        ("mcps", [{**GITHUB, "idle_timeout": 10**400}], "idle_timeout .* at most"),
        ("mcps", [{**GITHUB, "idle_timeout": float("nan")}], "above zero"),
    ],
)
def test_a_bad_setting_is_refused_with_what_to_write(key: str, value: Any, sentence: str) -> None:
    with pytest.raises(AgentError, match=sentence):
        read_crab(**{key: value})


def test_settings_nested_without_end_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(AgentError, match="nested too deeply"):
        read_crab(hooks=deep)


def test_a_secret_of_the_wrong_type_is_not_repeated() -> None:
    with pytest.raises(AgentError) as caught:
        read_crab(mcps=[{**GITHUB, "env": {"TOKEN": ["hunter2"]}, "auth": ["hunter2"]}])
    assert "hunter2" not in str(caught.value)


def test_unknown_keys_are_ignored_and_listed() -> None:
    document = {
        "id": "01J",
        "compact_threshold": 5,
        "mcps": [{**GITHUB, "enabled": True}],
    }
    assert read_crab(**document) == read_crab(mcps=[GITHUB])
    assert find_unknown_keys(document) == ["id", "compact_threshold", "mcps.github.enabled"]
    assert find_unknown_keys({"mcps": 5}) == find_unknown_keys({"mcps": [5]}) == []


def test_settings_hold_every_key_and_no_secret() -> None:
    local = {**GITHUB, "env": {"TOKEN": "hunter2", "EMPTY": ""}}
    far = {"name": "far", "url": "https://h", "auth": "Bearer hunter2", "idle_timeout": 5}
    settings = render_settings(read_crab(mcps=[local, far], hooks={"bash": {"deny": ["rm"]}}))
    assert settings == {
        "description": "",
        "model": "",
        "max_iterations": 16,
        "tool_choice": "auto",
        "thinking": False,
        "tools": [],
        "skills": [],
        "approve": [],
        "mode": "",
        "permissions": {},
        "compact_tool_max_len": 1024,
        "hooks": {"bash": {"deny": ["rm"]}},
        "mcps": [
            {
                "name": "github",
                "command": "github-mcp",
                "args": [],
                "env": {"TOKEN": MASK, "EMPTY": MASK},
                "url": None,
                "auth": None,
                "auto_restart": True,
                "idle_timeout": None,
            },
            {
                "name": "far",
                "command": "",
                "args": [],
                "env": {},
                "url": "https://h",
                "auth": MASK,
                "auto_restart": True,
                "idle_timeout": 5.0,
            },
        ],
    }
    assert "hunter2" not in json.dumps(settings)


def test_settings_are_a_copy() -> None:
    agent = read_crab(hooks={"bash": {"deny": ["rm"]}})
    render_settings(agent)["hooks"]["bash"]["deny"].append("dd")
    assert agent.hooks == {"bash": {"deny": ["rm"]}}


SECRETS = st.dictionaries(st.text("AB", min_size=1), st.text("s*"), max_size=3)
SERVERS = st.builds(
    McpServerConfig,
    name=st.text("nm", min_size=1),
    command=st.just("c"),
    env=SECRETS,
    auth=st.text("s*"),
)


@given(st.lists(SERVERS, max_size=3, unique_by=lambda server: server.name))
def test_settings_that_come_back_as_they_were_sent_change_nothing(
    servers: list[McpServerConfig],
) -> None:
    agent = Agent("crab", "p", mcps=tuple(servers))
    sent = json.loads(json.dumps(render_settings(agent)))
    assert parse_agent("crab", unmask_settings(sent, agent), agent.prompt) == agent


def test_a_secret_that_is_sent_whole_replaces_the_stored_one() -> None:
    agent = read_crab(mcps=[{**GITHUB, "env": {"A": "1", "B": "2"}, "auth": "old"}])
    sent = render_settings(agent)
    sent["mcps"][0]["env"] = {"A": MASK, "C": "3"}
    sent["mcps"][0]["auth"] = "new"
    (server,) = parse_agent("crab", unmask_settings(sent, agent), "p").mcps
    assert (server.env, server.auth) == ({"A": "1", "C": "3"}, "new")
    assert sent["mcps"][0]["env"]["A"] == MASK


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ({"name": "github", "env": {"B": MASK}}, "env 'B' of mcps 'github' is masked"),
        ({"name": "github", "auth": MASK}, "auth of mcps 'github' is masked.*send it whole"),
        ({"name": "other", "env": {"A": MASK}}, "env 'A' of mcps 'other' is masked"),
        ({"name": None, "auth": MASK}, "auth of mcps None is masked"),
    ],
)
def test_a_mask_for_which_nothing_is_stored_is_refused(
    server: dict[str, Any], sentence: str
) -> None:
    stored = read_crab(mcps=[{**GITHUB, "env": {"A": "1"}}])
    for before in (stored, None):
        with pytest.raises(AgentError, match=sentence):
            unmask_settings({"mcps": [server]}, before)


@pytest.mark.parametrize("servers", [None, 5, [5], [{"env": 5}], [{"name": ["x"]}]])
def test_settings_of_the_wrong_type_are_left_for_the_parser(servers: Any) -> None:
    assert unmask_settings({"mcps": servers, "model": "m"}, None) == {"mcps": servers, "model": "m"}
