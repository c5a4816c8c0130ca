"""Import and export of MCP servers in the JSON of other programs."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.cli.errors import CommandError
from crabtalk.cli.mcp_json import export_servers, has_masked_secrets, parse_servers

texts = st.text(st.characters(exclude_characters="$"), min_size=1)
started = st.fixed_dictionaries(
    {"name": texts, "command": texts, "args": st.lists(texts)},
    optional={
        "env": st.dictionaries(texts, texts, min_size=1),
        "auto_restart": st.just(False),
        "idle_timeout": st.integers(1, 900),
    },
)
reached = st.fixed_dictionaries({"name": texts, "url": texts}, optional={"auth": texts})


def wrap_server(**server: Any) -> str:
    return json.dumps({"mcpServers": {"beach": server}})


@given(st.lists(started | reached, unique_by=lambda server: server["name"]))
@pytest.mark.req("cli.mcp.exchange")
def test_exported_servers_are_imported_unchanged(servers: list[dict[str, Any]]) -> None:
    imported = parse_servers(json.dumps(export_servers(servers)), {})
    assert imported.servers == servers
    assert imported.remarks == []


@pytest.mark.parametrize("name", ["mcpServers", "servers", "context_servers"])
@pytest.mark.req("cli.mcp.exchange")
def test_several_names_for_the_servers_object_are_accepted(name: str) -> None:
    document = {name: {"beach": {"command": "b"}}, "inputs": []}
    assert parse_servers(json.dumps(document), {}).servers == [{"name": "beach", "command": "b"}]


@pytest.mark.req("cli.mcp.exchange")
def test_a_document_may_be_only_the_servers() -> None:
    document = json.dumps({"beach": {"command": "b"}, "web": {"url": "https://b.example"}})
    assert [server["name"] for server in parse_servers(document, {}).servers] == ["beach", "web"]


@pytest.mark.req("cli.mcp.exchange")
def test_the_authorization_header_is_imported() -> None:
    document = wrap_server(
        type="http", url="https://b.example", headers={"authorization": "Bearer b"}
    )
    assert parse_servers(document, {}).servers == [
        {"name": "beach", "url": "https://b.example", "auth": "Bearer b"}
    ]


@pytest.mark.req("cli.mcp.variables")
def test_variables_are_expanded_once() -> None:
    env = {"A": "${KEY}", "B": "x${env:KEY}y", "C": "${NONE:-plain}", "D": "$KEY"}
    document = wrap_server(command="b", args=["--key=${KEY}", "${EMPTY}", "${EMPTY:-e}"], env=env)
    (server,) = parse_servers(document, {"KEY": "${OTHER}", "OTHER": "no", "EMPTY": ""}).servers
    assert server["args"] == ["--key=${OTHER}", "", "e"]
    assert server["env"] == {"A": "${OTHER}", "B": "x${OTHER}y", "C": "plain", "D": "$KEY"}


@pytest.mark.req("cli.mcp.exchange")
def test_disabled_servers_and_unknown_keys_are_reported() -> None:
    servers = {
        "a": {"command": "a", "disabled": True, "env": {"KEY": "${MISSING}"}},
        "b": {"command": "b", "cwd": "/srv", "alwaysAllow": ["x"]},
    }
    imported = parse_servers(json.dumps({"mcpServers": servers}), {})
    assert imported.servers == [{"name": "b", "command": "b"}]
    assert imported.remarks == [
        "a is switched off there, and was left out",
        "b was taken without alwaysAllow, cwd, which means nothing here",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nonsense", "that is not valid JSON: "),
        ("[]", 'there is no "mcpServers" in that; '),
        ('{"mcpServers": []}', 'there is no "mcpServers" in that; '),
        ('{"theme": "dark"}', 'there is no "mcpServers" in that; '),
        ('{"mcpServers": {"beach": 5}}', "the server 'beach' is no JSON object; "),
        (
            wrap_server(command="b", env={"K": "${K}"}),
            "the server 'beach' needs $K, which is not set; ",
        ),
        (
            wrap_server(url="u", headers={"X-Key": "k"}),
            "the server 'beach' wants the header X-Key, ",
        ),
        (wrap_server(url="u", headers=5), "headers of the server 'beach' are no JSON object; "),
        (wrap_server(url="u", type="sse"), "the server 'beach' speaks SSE, "),
        (wrap_server(command="${input:token}"), "the server 'beach' asks for ${input:token}; "),
    ],
)
@pytest.mark.req("cli.mcp.exchange")
def test_an_invalid_document_gives_one_error(text: str, sentence: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_servers(text, {})
    assert str(caught.value).startswith(sentence)


def test_masks_are_noticed() -> None:
    assert has_masked_secrets([{"env": {"KEY": "********"}}])
    assert has_masked_secrets([{"env": None, "auth": "********"}])
    assert not has_masked_secrets([{"env": {"KEY": "open"}, "auth": None}])
