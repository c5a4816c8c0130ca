"""make run, as for a new user: without a terminal it answers its standard input."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.cli_process import CliOutcome
from tests.cli.leftover_daemons import configure_home, get_daemon_pid

ROOT = Path(__file__).parents[2]


async def make_run(home: Path, typed: str) -> CliOutcome:
    # Skip the setup target, which would need a network.
    command = ["make", "-o", ".venv/.compiled", "run"]
    # Remove make's variables, in case the tests themselves run under make.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("M")}
    env = {**ours, "CRABTALK_HOME": str(home)}
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, env=env, input=typed, capture_output=True, text=True
    )
    return CliOutcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.req("run.answers")
async def test_piped_input_is_answered_and_the_daemon_stays(home: Path) -> None:
    async with configure_home(home):
        outcome = await make_run(home, "!say hello\n")
        assert (outcome.code, outcome.out) == (0, "hello\n")
        assert outcome.err.startswith(f"started crabtalkd in {home}; ")
        pid = get_daemon_pid(home)
        assert (await make_run(home, "!say hello again\n")).output == "hello again\n"
        assert get_daemon_pid(home) == pid


@pytest.mark.req("run.answers")
async def test_empty_input_gives_one_error(home: Path) -> None:
    async with configure_home(home):
        outcome = await make_run(home, "")
        assert outcome.code != 0
        assert outcome.err.startswith("crabtalk: there is nothing to ask; ")


@pytest.mark.req("run.answers")
async def test_make_run_fails_when_the_turn_fails(home: Path) -> None:
    async with configure_home(home):
        outcome = await make_run(home, "!status 500 the model is tired\n")
        assert outcome.code != 0
        assert "the model is tired" in outcome.err
