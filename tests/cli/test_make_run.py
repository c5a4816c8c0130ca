"""make run, as somebody does who has just come: without a terminal it answers what it is given."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.cli_process import CliOutcome
from tests.cli.leftover_daemons import configure_home, get_daemon_pid

ROOT = Path(__file__).parents[2]


async def make_run(home: Path, typed: str) -> CliOutcome:
    # What is set up already is not set up again: that is make's affair, and takes a network.
    command = ["make", "-o", ".venv/.compiled", "run"]
    # Nor is this make part of the one that may run the tests.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("M")}
    env = {**ours, "CRABTALK_HOME": str(home)}
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, env=env, input=typed, capture_output=True, text=True
    )
    return CliOutcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.req("run.answers")
async def test_what_is_piped_in_is_answered_and_the_daemon_stays(home: Path) -> None:
    async with configure_home(home):
        said = await make_run(home, "!say hello\n")
        assert (said.code, said.out) == (0, "hello\n")
        assert said.err.startswith(f"started crabtalkd in {home}; ")
        pid = get_daemon_pid(home)
        assert (await make_run(home, "!say hello again\n")).output == "hello again\n"
        assert get_daemon_pid(home) == pid


@pytest.mark.req("run.answers")
async def test_nothing_is_a_sentence(home: Path) -> None:
    async with configure_home(home):
        said = await make_run(home, "")
        assert said.code != 0
        assert said.err.startswith("crabtalk: there is nothing to ask; ")


@pytest.mark.req("run.answers")
async def test_it_fails_when_the_answer_does(home: Path) -> None:
    async with configure_home(home):
        said = await make_run(home, "!status 500 the model is tired\n")
        assert said.code != 0
        assert "the model is tired" in said.err
