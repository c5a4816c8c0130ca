"""crabtalk stats, reload, models and skills."""

import json
from pathlib import Path

import pytest

import crabtalk as package
from tests.cli.cli_process import run_crabtalk
from tests.daemon.in_process_daemon import CONFIG, run_daemon
from tests.model_server import model_server

SKILL = "---\nname: tides\ndescription: Reads tide tables.\n---\nRead them.\n"


@pytest.mark.req("cli.stats")
async def test_stats_show_the_daemons_state(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "!say hi")
        where = ("--home", daemon.home)
        known = json.loads((await run_crabtalk("stats", "--json", *where)).output)
        assert known["uptime_secs"] < 60
        assert {**known, "uptime_secs": 0} == {
            "home": str(daemon.home),
            "version": package.__version__,
            "uptime_secs": 0,
            "active_conversations": 1,
            "registered_agents": 2,
            "active_model": "scripted",
            "runs": 0,
            "problems": [],
        }
        lines = (await run_crabtalk("stats", *where)).output.splitlines()
        assert lines[0] == f"crabtalkd      {package.__version__} in {daemon.home}"
        assert lines[2:] == [
            "model          scripted",
            "agents         2",
            "conversations  1 in memory, 0 turns running",
        ]


@pytest.mark.req("cli.stats")
async def test_reload_reports_current_problems(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        where = ("--home", daemon.home)
        daemon.agent_file("owl").write_text('prompt = "You are owl."')
        outcome = await run_crabtalk("reload", *where)
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "reloaded\n")
        assert "agents         3" in (await run_crabtalk("stats", *where)).output
        daemon.agent_file("bat").write_text("prompt = ")
        outcome = await run_crabtalk("reload", *where)
        problem, last = outcome.err.splitlines()
        assert (outcome.code, outcome.out) == (0, "")
        assert problem.startswith("crabtalk: ")
        assert "bat" in problem
        assert last == "reloaded, but for what is said above"
        assert "\nproblem " in (await run_crabtalk("stats", *where)).output
        outcome = await run_crabtalk("reload", "--json", *where)
        assert [*json.loads(outcome.output)] == ["problems"]
        assert len(json.loads(outcome.output)["problems"]) == 1


@pytest.mark.req("cli.stats")
async def test_an_unusable_config_gives_one_error(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        daemon.write_config("[daemon")
        assert (await run_crabtalk("reload", "--home", daemon.home)).error


@pytest.mark.req("cli.models")
async def test_models_are_listed_and_chosen(tmp_path: Path) -> None:
    config = CONFIG.replace('model = "scripted"\n', "")
    async with model_server() as model, run_daemon(tmp_path, model, config=config) as daemon:
        model.models = ["scripted", "other"]
        where = ("--home", daemon.home)
        for words in (("models", "list", *where), (*where, "models")):
            assert (await run_crabtalk(*words)).output == "* scripted\n  other\n"
        outcome = await run_crabtalk("models", "use", "other", *where)
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "other answers from now on\n")
        known = json.loads((await run_crabtalk("models", "list", "--json", *where)).output)
        assert known == {
            "models": [{"name": "scripted", "active": False}, {"name": "other", "active": True}]
        }
        outcome = await run_crabtalk("models", "use", "scripted", "--json", *where)
        assert json.loads(outcome.output) == {"name": "scripted", "active": True}
        assert (
            "no provider offers 'none'"
            in (await run_crabtalk("models", "use", "none", *where)).error
        )


@pytest.mark.req("cli.models")
async def test_without_a_model_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    config = CONFIG.replace("{url}", "http://127.0.0.1:1/v1").replace('model = "scripted"\n', "")
    async with run_daemon(tmp_path, config=config) as daemon:
        outcome = await run_crabtalk("models", "list", "--home", daemon.home)
        assert outcome.out == ""
        assert "crabtalk" in outcome.err


@pytest.mark.req("cli.skills")
async def test_skills_are_listed_with_their_source(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon:
        where = ("--home", daemon.home)
        outcome = await run_crabtalk("skills", *where, HOME=str(tmp_path))
        if outcome.out == "":
            assert outcome.err.startswith("there are no skills yet; ")
        (place := daemon.home / "skills" / "tides").mkdir(parents=True)
        (place / "SKILL.md").write_text(SKILL)
        assert "tides  local" in (await run_crabtalk("skills", *where)).output.splitlines()
        known = json.loads((await run_crabtalk("skills", "--json", *where)).output)["skills"]
        assert {"name": "tides", "source": "local", "source_kind": "LOCAL"} in known
