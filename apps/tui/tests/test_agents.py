"""crabtalk agents, with a real daemon: agents are listed, made, changed, copied and removed."""

import json
import tomllib
from pathlib import Path

import pytest

from apps.tui.tests.command import at_terminal, crabtalk, without_colour
from crabtalk.client import ServerError
from tests.daemon.served import AGENTS, served

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
    async with served(tmp_path, agents=WITH_OWL) as daemon:
        where = ("--home", daemon.home)
        assert (await crabtalk("agents", "list", *where)).answer == (
            "crab  (active model)\n"
            "owl   scripted        Sees\\x1b[2J at night\n"
            "twin  (active model)\n"
        )
        found = json.loads((await crabtalk("agents", "list", *where, "--json")).answer)["agents"]
        assert [each["name"] for each in found] == ["crab", "owl", "twin"]
        assert found[1]["tools"] == ["tide"]


@pytest.mark.req("cli.agents.show")
async def test_an_agent_is_shown_as_its_file_has_it_but_for_secrets(tmp_path: Path) -> None:
    async with served(tmp_path, agents=WITH_OWL) as daemon:
        where = ("owl", "--home", daemon.home)
        page = (await crabtalk("agents", "show", *where)).answer
        shown, file = tomllib.loads(page), tomllib.loads(OWL)
        assert shown["prompt"] == file["prompt"]
        assert shown["hooks"] == file["hooks"]
        assert shown["max_iterations"] == 16
        (server,) = shown["mcps"]
        assert (server["auth"], server["env"]) == ("********", {"TOKEN": "********"})
        assert "sesame" not in page
        assert "sekrit" not in page
        in_json = json.loads((await crabtalk("agents", "show", *where, "--json")).answer)
        assert (in_json["name"], in_json["prompt"]) == ("owl", file["prompt"])


@pytest.mark.req("cli.terminal.safe")
async def test_an_agent_cannot_steer_the_terminal_it_is_shown_on(tmp_path: Path) -> None:
    agents = {"owl": 'prompt = "You\\u009b2J are\\nowl."\n'}
    async with served(tmp_path, agents=agents) as daemon:
        code, screen = await at_terminal("agents", "show", "owl", "--home", daemon.home)
        assert code == 0
        assert "You\\x9b2J are\nowl." in without_colour(screen)


@pytest.mark.req("cli.agents.create")
async def test_an_agent_is_made_of_options_files_and_pipes(tmp_path: Path) -> None:
    page, prompt = tmp_path / "page.json", tmp_path / "prompt.md"
    page.write_text(json.dumps({"max_iterations": 3, "model": "other", "prompt": "From the page."}))
    prompt.write_text("From the file.\n")
    async with served(tmp_path) as daemon:
        where = ("--home", daemon.home)
        made = await crabtalk(
            *("agents", "create", "a", "--prompt", "You are a.", "--description", "A", *where)
        )
        assert (made.code, made.out, made.err) == (0, "", "created a\n")
        assert tomllib.loads(daemon.agent_file("a").read_text()) == {
            "description": "A",
            "prompt": "You are a.",
        }

        given = ("--config", page, "--prompt-file", prompt, "--model", "scripted", "--json")
        answer = (await crabtalk("agents", "create", "b", *given, *where)).answer
        assert json.loads(answer)["max_iterations"] == 3
        assert tomllib.loads(daemon.agent_file("b").read_text()) == {
            "max_iterations": 3,
            "model": "scripted",
            "prompt": "From the file.\n",
        }

        shown = (await crabtalk("agents", "show", "b", *where)).answer
        await crabtalk("agents", "create", "c", "--config", "-", *where, typed=shown.encode())
        assert (await crabtalk("agents", "show", "c", *where)).answer == shown


@pytest.mark.req("cli.agents.create")
async def test_what_means_nothing_to_an_agent_is_said(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon:
        words = ("agents", "create", "a", "--config", "-", "--home", daemon.home)
        made = await crabtalk(*words, typed=b'prompt = "You are a."\nmodle = "m"\n')
        assert made.err == "no agent has modle, which was left out\ncreated a\n"


@pytest.mark.req("cli.agents.create")
async def test_an_agent_that_cannot_be_is_not_made(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon:
        words = ("agents", "create", "--home", daemon.home)
        said = await crabtalk(*words, "crab", "--prompt", "You are crab.")
        assert said.complaint.startswith("an agent called 'crab' is there already; ")
        said = await crabtalk(*words, "../crab", "--prompt", "You are crab.")
        assert said.complaint.startswith("the name '../crab' must not hold any of ")
        said = await crabtalk(*words, "owl", "--config", "-", typed=b"prompt = ")
        assert said.complaint.startswith("that is not valid TOML: ")
        said = await crabtalk(*words, "owl", "--prompt-file", "-", typed=b"\xff")
        assert said.complaint == "<stdin> is not UTF-8; convert it first"
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
async def test_an_agent_of_nothing_or_of_too_much_is_a_usage_error(
    options: tuple[str, ...], home: Path
) -> None:
    said = await crabtalk("agents", "create", "a", *options, "--home", home)
    assert (said.code, said.out) == (2, "")
    assert "Error: " in said.err


@pytest.mark.req("cli.agents.rm")
@pytest.mark.req("cli.no_prompt")
async def test_an_agent_is_removed_when_somebody_agreed(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon:
        words = ("agents", "rm", "twin", "--home", daemon.home)
        assert (await crabtalk(*words)).complaint == (
            "nothing was changed; without a terminal to ask on, say --yes"
        )
        code, screen = await at_terminal(*words, typed="n\n", when="[y/N]")
        assert (code, daemon.agent_file("twin").exists()) == (1, True)
        assert "Remove twin, its prompt and its settings? [y/N]" in screen
        code, _ = await at_terminal(*words, typed="y\n", when="[y/N]")
        assert (code, daemon.agent_file("twin").exists()) == (0, False)
        said = await crabtalk(*words, "--yes")
        assert said.complaint.startswith("no agent is called 'twin'; `crabtalk agents list`")
        removed = await crabtalk("agents", "rm", "crab", "--yes", "--json", "--home", daemon.home)
        assert json.loads(removed.answer) == {"removed": "crab"}


@pytest.mark.req("cli.agents.rename")
async def test_an_agent_gets_another_name(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon, daemon.client() as client:
        where = ("--home", daemon.home)
        said = await crabtalk("agents", "rename", "twin", "scout", *where)
        assert (said.code, said.err) == (0, "twin is scout now\n")
        assert [each.name for each in (await client.list_agents()).agents] == ["crab", "scout"]
        said = await crabtalk("agents", "rename", "scout", "crab", *where)
        assert "there is an agent 'crab' already" in said.complaint


@pytest.mark.req("cli.agents.fork")
async def test_a_fork_is_the_same_agent_with_its_secrets_under_another_name(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, agents=WITH_OWL) as daemon:
        where = ("--home", daemon.home)
        said = await crabtalk("agents", "fork", "owl", "eule", *where)
        assert (said.code, said.out, said.err) == (0, "", "eule is what owl is\n")
        assert tomllib.loads(daemon.agent_file("eule").read_text()) == tomllib.loads(OWL)
        shown = [await crabtalk("agents", "show", name, *where) for name in ("owl", "eule")]
        assert shown[0].answer == shown[1].answer
        said = await crabtalk("agents", "fork", "owl", "twin", *where)
        assert said.complaint == (
            "an agent called 'twin' is there already; edit it, or choose another name"
        )
        said = await crabtalk("agents", "fork", "cat", "dog", *where)
        assert said.complaint.startswith("no agent is called 'cat'; ")
        assert daemon.agent_file("twin").read_text() == AGENTS["twin"]


@pytest.mark.req("cli.agents.fork")
async def test_an_agent_whose_file_is_no_longer_one_cannot_be_forked(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon, daemon.client() as client:
        words = ("agents", "fork", "twin", "two", "--home", daemon.home)
        file = daemon.agent_file("twin")
        file.write_text("prompt = 'twin'\n[hooks.x]\nsince = 2026-01-01\n")
        assert "hold no dates" in (await crabtalk(*words)).complaint
        file.write_text("prompt = ")
        assert (await crabtalk(*words)).complaint.startswith(f"{file} is not valid TOML: ")
        file.unlink()
        assert (await crabtalk(*words)).complaint.startswith(f"twin has no file {file}; ")
        with pytest.raises(ServerError, match="no agent"):
            await client.get_agent("two")
