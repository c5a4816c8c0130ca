"""crabtalk agents with a real daemon: list, create, edit, fork and remove agents."""

import json
import tomllib
from pathlib import Path

import pytest

from crabtalk.client import ServerError
from tests.cli.cli_process import run_at_terminal, run_crabtalk, strip_colours
from tests.daemon.in_process_daemon import AGENTS, run_daemon

OWL = """\
# Mine.
description = "Sees\\u001b[2J at night"
model = "scripted"
prompt = \"\"\"
You are owl.
Be "wise".\"\"\"
tools = ["tide"]  # no more

[hooks.bash]
disabled = true

[[mcps]]
name = "beach"
url = "http://127.0.0.1:9/mcp"
auth = "Bearer sesame"
env = { TOKEN = "sekrit" }
idle_timeout = 5.5
"""
WITH_OWL = {**AGENTS, "owl": OWL}


@pytest.mark.req("cli.agents.list")
async def test_agents_are_listed_with_model_and_description(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=WITH_OWL) as daemon:
        where = ("--home", daemon.home)
        assert (await run_crabtalk("agents", "list", *where)).output == (
            "crab  (active model)\n"
            "owl   scripted        Sees\\x1b[2J at night\n"
            "twin  (active model)\n"
        )
        found = json.loads((await run_crabtalk("agents", "list", *where, "--json")).output)[
            "agents"
        ]
        assert [each["name"] for each in found] == ["crab", "owl", "twin"]
        assert found[1]["tools"] == ["tide"]


@pytest.mark.req("cli.agents.show")
async def test_an_agent_is_shown_as_in_its_file_without_secrets(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=WITH_OWL) as daemon:
        where = ("owl", "--home", daemon.home)
        page = (await run_crabtalk("agents", "show", *where)).output
        shown, file = tomllib.loads(page), tomllib.loads(OWL)
        assert shown["prompt"] == file["prompt"]
        assert shown["hooks"] == file["hooks"]
        assert shown["max_iterations"] == 16
        (server,) = shown["mcps"]
        assert (server["auth"], server["env"]) == ("********", {"TOKEN": "********"})
        assert "sesame" not in page
        assert "sekrit" not in page
        in_json = json.loads((await run_crabtalk("agents", "show", *where, "--json")).output)
        assert (in_json["name"], in_json["prompt"]) == ("owl", file["prompt"])


@pytest.mark.req("cli.terminal.safe")
async def test_control_characters_of_an_agent_are_escaped_at_a_terminal(tmp_path: Path) -> None:
    agents = {"owl": 'prompt = "You\\u009b2J are\\nowl."\n'}
    async with run_daemon(tmp_path, agents=agents) as daemon:
        code, screen = await run_at_terminal("agents", "show", "owl", "--home", daemon.home)
        assert code == 0
        assert "You\\x9b2J are\nowl." in strip_colours(screen)


@pytest.mark.req("cli.agents.create")
async def test_an_agent_is_created_from_options_files_and_pipes(tmp_path: Path) -> None:
    page, prompt = tmp_path / "page.json", tmp_path / "prompt.md"
    page.write_text(json.dumps({"max_iterations": 3, "model": "other", "prompt": "From the page."}))
    prompt.write_text("From the file.\n")
    async with run_daemon(tmp_path) as daemon:
        where = ("--home", daemon.home)
        made = await run_crabtalk(
            *("agents", "create", "a", "--prompt", "You are a.", "--description", "A", *where)
        )
        assert (made.code, made.out, made.err) == (0, "", "created a\n")
        assert tomllib.loads(daemon.agent_file("a").read_text()) == {
            "description": "A",
            "prompt": "You are a.",
        }

        given = ("--config", page, "--prompt-file", prompt, "--model", "scripted", "--json")
        answer = (await run_crabtalk("agents", "create", "b", *given, *where)).output
        assert json.loads(answer)["max_iterations"] == 3
        assert tomllib.loads(daemon.agent_file("b").read_text()) == {
            "max_iterations": 3,
            "model": "scripted",
            "prompt": "From the file.\n",
        }

        shown = (await run_crabtalk("agents", "show", "b", *where)).output
        await run_crabtalk("agents", "create", "c", "--config", "-", *where, typed=shown.encode())
        assert (await run_crabtalk("agents", "show", "c", *where)).output == shown


@pytest.mark.req("cli.agents.create")
async def test_unknown_settings_are_reported(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        words = ("agents", "create", "a", "--config", "-", "--home", daemon.home)
        made = await run_crabtalk(*words, typed=b'prompt = "You are a."\nmodle = "m"\n')
        assert made.err == "no agent has modle, which was left out\ncreated a\n"


@pytest.mark.req("cli.agents.create")
async def test_an_invalid_agent_is_not_created(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        words = ("agents", "create", "--home", daemon.home)
        outcome = await run_crabtalk(*words, "crab", "--prompt", "You are crab.")
        assert outcome.error.startswith("an agent called 'crab' is there already; ")
        outcome = await run_crabtalk(*words, "../crab", "--prompt", "You are crab.")
        assert outcome.error.startswith("the name '../crab' must not hold any of ")
        outcome = await run_crabtalk(*words, "owl", "--config", "-", typed=b"prompt = ")
        assert outcome.error.startswith("that is not valid TOML: ")
        outcome = await run_crabtalk(*words, "owl", "--prompt-file", "-", typed=b"\xff")
        assert outcome.error == "<stdin> is not UTF-8; convert it first"
        assert sorted(path.stem for path in (daemon.home / "agents").iterdir()) == ["crab", "twin"]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--prompt", "a", "--prompt-file", "-"),
        ("--prompt-file", "-", "--config", "-"),
        ("--config", "/nonexistent"),
    ],
)
@pytest.mark.req("cli.exit_codes")
async def test_missing_or_conflicting_options_are_a_usage_error(
    options: tuple[str, ...], home: Path
) -> None:
    outcome = await run_crabtalk("agents", "create", "a", *options, "--home", home)
    assert (outcome.code, outcome.out) == (2, "")
    assert "Error: " in outcome.err


@pytest.mark.req("cli.agents.rm")
@pytest.mark.req("cli.no_prompt")
async def test_an_agent_is_removed_after_a_confirmation(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        words = ("agents", "rm", "twin", "--home", daemon.home)
        assert (await run_crabtalk(*words)).error == (
            "nothing was changed; without a terminal to ask on, say --yes"
        )
        code, screen = await run_at_terminal(*words, typed="n\n", when="[y/N]")
        assert (code, daemon.agent_file("twin").exists()) == (1, True)
        assert "Remove twin, its prompt and its settings? [y/N]" in screen
        code, _ = await run_at_terminal(*words, typed="y\n", when="[y/N]")
        assert (code, daemon.agent_file("twin").exists()) == (0, False)
        outcome = await run_crabtalk(*words, "--yes")
        assert outcome.error.startswith("no agent is called 'twin'; `crabtalk agents list`")
        removed = await run_crabtalk(
            "agents", "rm", "crab", "--yes", "--json", "--home", daemon.home
        )
        assert json.loads(removed.output) == {"removed": "crab"}


@pytest.mark.req("cli.agents.rename")
async def test_an_agent_is_renamed(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        where = ("--home", daemon.home)
        outcome = await run_crabtalk("agents", "rename", "twin", "scout", *where)
        assert (outcome.code, outcome.err) == (0, "twin is scout now\n")
        assert [each.name for each in (await client.list_agents()).agents] == ["crab", "scout"]
        outcome = await run_crabtalk("agents", "rename", "scout", "crab", *where)
        assert "there is an agent 'crab' already" in outcome.error


@pytest.mark.req("cli.agents.fork")
async def test_a_fork_is_a_copy_with_secrets_under_another_name(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, agents=WITH_OWL) as daemon:
        where = ("--home", daemon.home)
        outcome = await run_crabtalk("agents", "fork", "owl", "eule", *where)
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "eule is what owl is\n")
        assert tomllib.loads(daemon.agent_file("eule").read_text()) == tomllib.loads(OWL)
        shown = [await run_crabtalk("agents", "show", name, *where) for name in ("owl", "eule")]
        assert shown[0].output == shown[1].output
        outcome = await run_crabtalk("agents", "fork", "owl", "twin", *where)
        assert outcome.error == (
            "an agent called 'twin' is there already; edit it, or choose another name"
        )
        outcome = await run_crabtalk("agents", "fork", "cat", "dog", *where)
        assert outcome.error.startswith("no agent is called 'cat'; ")
        assert daemon.agent_file("twin").read_text() == AGENTS["twin"]


@pytest.mark.req("cli.agents.fork")
async def test_an_agent_with_a_broken_file_cannot_be_forked(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        words = ("agents", "fork", "twin", "two", "--home", daemon.home)
        file = daemon.agent_file("twin")
        file.write_text("prompt = 'twin'\n[hooks.x]\nsince = 2026-01-01\n")
        assert "hold no dates" in (await run_crabtalk(*words)).error
        file.write_text("prompt = ")
        assert (await run_crabtalk(*words)).error.startswith(f"{file} is not valid TOML: ")
        file.unlink()
        assert (await run_crabtalk(*words)).error.startswith(f"twin has no file {file}; ")
        with pytest.raises(ServerError, match="no agent"):
            await client.get_agent("two")
