"""Agents over the wire: create, read, update, rename, delete, and invalid files."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from crabtalk.protocol import wire
from tests.daemon.in_process_daemon import (
    collect_events,
    collect_text,
    expect_error_code,
    list_request_messages,
    read_conversation,
    run_daemon,
    wait_for_event,
)

# The result does not depend on the event loop.
pytestmark = pytest.mark.one_loop

SERVER = {
    "name": "github",
    "command": "github-mcp",
    "env": {"TOKEN": "s3cret-token", "HOST": "example.org"},
    "auth": "Bearer s3cret-header",
}
AGENT_FILE = """\
# Our crab. Do not feed.
description = "helper" # in a word
prompt = "You are crab."

# it may think
max_iterations = 8
colour = "red"
"""


def read_settings(info: wire.AgentInfo) -> dict[str, Any]:
    return dict(json.loads(info.config))


# ── Reading ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("agents.read")
async def test_agents_are_listed_by_name_with_their_settings(tmp_path: Path) -> None:
    agents = {
        "zebra": 'prompt = "z"\n',
        "crab": 'prompt = "c"\ndescription = "helper"\nmodel = "m"\nthinking = true\n'
        'skills = ["swim"]\ncompact_tool_max_len = 7\n[[mcps]]\nname = "g"\ncommand = "x"\n',
    }
    async with run_daemon(tmp_path, agents=agents) as daemon, daemon.client() as client:
        listed = (await client.list_agents()).agents
        assert [agent.name for agent in listed] == ["crab", "zebra"]
        crab = await client.get_agent("crab")
        assert crab == listed[0]
        assert (crab.description, crab.model, crab.thinking) == ("helper", "m", True)
        assert (crab.max_iterations, crab.compact_tool_max_len) == (16, 7)
        assert (list(crab.skills), list(crab.mcps)) == (["swim"], ["g"])
        assert "prompt" not in read_settings(crab)
        assert read_settings(crab)["tool_choice"] == "auto"
        assert await expect_error_code(client.get_agent("squid")) == 404
        assert await expect_error_code(client.get_agent("../crab")) == 404
        large = await client.update_agent("zebra", {"compact_tool_max_len": 2**40})
        assert large.compact_tool_max_len == 2**32 - 1  # the most there is room for
        assert read_settings(large)["compact_tool_max_len"] == 2**40


@pytest.mark.req("agents.first")
async def test_a_home_without_agents_gets_crab(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents={}) as daemon, daemon.client() as client:
        assert [agent.name for agent in (await client.list_agents()).agents] == ["crab"]
        assert daemon.agent_file("crab").exists()
        assert (await client.send("crab", "hello")).content == "heard: hello"


# ── Making and changing ────────────────────────────────────────────────────────────────────────


@pytest.mark.req("agents.create")
@pytest.mark.on_files
async def test_a_new_agent_can_be_talked_to_at_once_and_has_a_file(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        info = await client.create_agent("owl", "You are owl.", {"description": "wise"})
        assert (info.name, info.description) == ("owl", "wise")
        await client.send("owl", "hello")
        assert list_request_messages(daemon.model.requests[-1])[0] == ("system", "You are owl.")
        path = daemon.home / "agents" / "owl.toml"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await client.reload()
        assert await client.get_agent("owl") == info


@pytest.mark.req("agents.create.refused")
@pytest.mark.parametrize(
    ("name", "prompt", "config"),
    [
        ("crab", "taken", "{}"),
        ("", "no name", "{}"),
        ("../owl", "a path", "{}"),
        ("a.b", "a dot", "{}"),
        ("x" * 65, "too long", "{}"),
        ("ow\0l", "a NUL", "{}"),
        ("owl", "", "{}"),
        ("owl", " ", "{}"),
        ("owl", "p", "{"),
        ("owl", "p", "[]"),
        ("owl", "p", "[" * 100_000),
        ("owl", "p", '{"max_iterations": 0}'),
        ("owl", "p", '{"max_iterations": "many"}'),
        ("owl", "p", '{"mcps": [{"name": "g"}]}'),
        ("owl", "p", '{"mcps": [{"name": "g", "command": "x", "auth": "********"}]}'),
    ],
)
async def test_an_invalid_agent_is_refused_and_creates_no_file(
    tmp_path: Path, name: str, prompt: str, config: str
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        before = sorted(daemon.home.rglob("*.toml"))
        assert await expect_error_code(client.create_agent(name, prompt, config)) == 400
        assert sorted(daemon.home.rglob("*.toml")) == before
        assert [agent.name for agent in (await client.list_agents()).agents] == ["crab", "twin"]


@pytest.mark.req("agents.update")
async def test_an_update_keeps_the_prompt_comments_and_unknown_keys(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, agents={"crab": AGENT_FILE}) as daemon,
        daemon.client() as client,
    ):
        config = read_settings(await client.get_agent("crab")) | {"description": "our helper"}
        info = await client.update_agent("crab", config)
        assert (info.description, info.max_iterations) == ("our helper", 8)
        assert daemon.agent_file("crab").read_text() == AGENT_FILE.replace(
            '"helper"', '"our helper"'
        )
        await client.send("crab", "hello")
        assert list_request_messages(daemon.model.requests[-1])[0] == ("system", "You are crab.")


@pytest.mark.req("agents.update")
async def test_an_update_replaces_settings_and_prompt_from_the_next_turn_on(
    tmp_path: Path,
) -> None:
    async with (
        run_daemon(tmp_path, agents={"crab": AGENT_FILE}) as daemon,
        daemon.client() as client,
    ):
        running = client.stream("crab", "!wait\n!say as before")
        await wait_for_event(running, wire.StreamStart)
        await daemon.model.until_waiting()
        info = await client.update_agent("crab", {}, prompt="You are new.")
        assert (info.description, info.max_iterations) == ("", 16)
        daemon.model.release()
        assert collect_text(await collect_events(running)) == "as before"
        await client.send("crab", "hello")
        prompts = [list_request_messages(request)[0][1] for request in daemon.model.requests]
        assert prompts == ["You are crab.", "You are new."]


@pytest.mark.req("agents.update")
async def test_an_update_of_an_unknown_agent_creates_it(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        assert (await client.update_agent("owl", {}, prompt="You are owl.")).name == "owl"
        assert (await client.send("owl", "hello")).agent == "owl"
        assert await expect_error_code(client.update_agent("ant", {})) == 400
        assert await expect_error_code(client.update_agent("crab", '{"thinking": 1}')) == 400
        assert not daemon.agent_file("ant").exists()


@pytest.mark.req("agents.secrets")
async def test_secrets_are_masked_in_answers_and_unchanged_by_masked_updates(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        created = await client.create_agent("owl", "You are owl.", {"mcps": [SERVER]})
        seen = [created, await client.get_agent("owl"), *(await client.list_agents()).agents]
        assert all("s3cret" not in info.config for info in seen)
        (server,) = read_settings(created)["mcps"]
        assert server["env"] == {"TOKEN": "********", "HOST": "********"}
        assert server["auth"] == "********"
        config = read_settings(created) | {"description": "wise"}
        config["mcps"][0]["env"]["HOST"] = "elsewhere.org"
        updated = await client.update_agent("owl", config)
        assert "s3cret" not in updated.config
        text = daemon.agent_file("owl").read_text()
        assert '"s3cret-token"' in text
        assert '"Bearer s3cret-header"' in text
        assert '"elsewhere.org"' in text
        assert "********" not in text
        config["mcps"][0]["name"] = "another"
        assert await expect_error_code(client.update_agent("owl", config)) == 400
        assert daemon.agent_file("owl").read_text() == text


# ── Renaming and removing ──────────────────────────────────────────────────────────────────────


@pytest.mark.req("agents.delete")
async def test_a_deleted_agent_is_gone_and_its_conversations_can_still_be_read(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("twin", "hello")
        await client.delete_agent("twin")
        assert not daemon.agent_file("twin").exists()
        assert await expect_error_code(client.get_agent("twin")) == 404
        assert await expect_error_code(client.delete_agent("twin")) == 404
        assert await expect_error_code(client.delete_agent("squid")) == 404
        assert await expect_error_code(client.send("twin", "are you there?")) == 404
        assert len(await read_conversation(client, "twin")) == 2
        (conversation,) = (await client.list_conversations("twin")).conversations
        await client.delete_conversation(conversation.file_path)
        assert await expect_error_code(client.list_messages("twin")) == 404


@pytest.mark.req("agents.rename")
async def test_a_renamed_agent_is_the_same_under_another_name(tmp_path: Path) -> None:
    """Its conversations stay under the old name."""
    agents = {"twin": f'# mine\nprompt = "You are twin."\n[[mcps]]\n{format_server(SERVER)}'}
    async with run_daemon(tmp_path, agents=agents) as daemon, daemon.client() as client:
        await client.send("twin", "hello")
        text = daemon.agent_file("twin").read_text()
        assert (await client.rename_agent("twin", "owl")).name == "owl"
        assert daemon.agent_file("owl").read_text() == text
        assert not daemon.agent_file("twin").exists()
        await client.send("owl", "hello")
        assert list_request_messages(daemon.model.requests[-1]) == [
            ("system", "You are twin."),
            ("user", "hello"),
        ]
        assert len(await read_conversation(client, "twin")) == 2
        assert await expect_error_code(client.send("twin", "hello")) == 404


def format_server(server: dict[str, Any]) -> str:
    env = ", ".join(f'{key} = "{value}"' for key, value in server["env"].items())
    rest = "".join(f'{key} = "{server[key]}"\n' for key in ("name", "command", "auth"))
    return f"{rest}env = {{ {env} }}\n"


@pytest.mark.req("agents.rename")
@pytest.mark.on_files
async def test_renaming_is_refused_for_crab_and_for_names_that_are_taken_or_invalid(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        assert await expect_error_code(client.rename_agent("crab", "lobster")) == 400
        assert await expect_error_code(client.rename_agent("twin", "crab")) == 400
        assert await expect_error_code(client.rename_agent("twin", "../x")) == 400
        assert await expect_error_code(client.rename_agent("twin", "")) == 400
        assert await expect_error_code(client.rename_agent("squid", "owl")) == 404
        assert (await client.rename_agent("twin", "twin")).name == "twin"
        assert (await client.rename_agent("crab", "crab")).name == "crab"
        assert sorted(path.name for path in daemon.home.glob("agents/*")) == [
            "crab.toml",
            "twin.toml",
        ]


# ── Files that cannot be used ──────────────────────────────────────────────────────────────────


@pytest.mark.req("agents.broken")
@pytest.mark.on_files
async def test_a_broken_file_is_reported_by_name_and_the_others_load(tmp_path: Path) -> None:
    agents = {"crab": 'prompt = "c"\n', "owl": "prompt = ", "ant": "thinking = true\n"}
    async with run_daemon(tmp_path, agents=agents) as daemon, daemon.client() as client:
        stats = await client.get_stats()
        assert stats.registered_agents == 1
        ant, owl = stats.problems
        assert f"{daemon.home}/agents/ant.toml: prompt is missing" in ant
        assert f"{daemon.home}/agents/owl.toml is not valid TOML" in owl
        assert await expect_error_code(client.send("owl", "hello")) == 404
        assert (await client.send("crab", "hello")).content == "heard: hello"
        daemon.agent_file("owl").write_text('prompt = "You are owl."\n')
        await client.reload()
        assert len((await client.get_stats()).problems) == 1
        assert (await client.send("owl", "hello")).agent == "owl"


@pytest.mark.req("agents.broken")
@pytest.mark.on_files
async def test_an_agent_whose_file_breaks_while_it_is_in_use_stays_as_it_was(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        daemon.agent_file("crab").write_text("prompt = ")
        await client.reload()
        (problem,) = (await client.get_stats()).problems
        assert "crab.toml" in problem
        assert (await client.send("crab", "hello")).content == "heard: hello"
        assert await expect_error_code(client.update_agent("crab", {}, prompt="new")) == 400
        assert daemon.agent_file("crab").read_text() == "prompt = "


@pytest.mark.req("agents.broken")
async def test_a_broken_agent_can_be_deleted_which_removes_the_problem(tmp_path: Path) -> None:
    agents = {"crab": 'prompt = "c"\n', "owl": "prompt = "}
    async with run_daemon(tmp_path, agents=agents) as daemon, daemon.client() as client:
        assert await expect_error_code(client.create_agent("owl", "You are owl.")) == 400
        await client.delete_agent("owl")
        assert not daemon.agent_file("owl").exists()
        assert list((await client.get_stats()).problems) == []
        await client.create_agent("owl", "You are owl.")


@pytest.mark.req("agents.broken")
async def test_an_update_repairs_a_broken_agent(
    tmp_path: Path,
) -> None:
    agents = {"crab": 'prompt = "c"\n', "owl": "thinking = 7\n"}
    async with run_daemon(tmp_path, agents=agents) as daemon, daemon.client() as client:
        assert len((await client.get_stats()).problems) == 1
        await client.update_agent("owl", {}, prompt="You are owl.")
        assert list((await client.get_stats()).problems) == []
        assert (await client.send("owl", "hello")).agent == "owl"
