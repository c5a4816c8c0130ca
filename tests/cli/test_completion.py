"""Shell completion of commands, options and names."""

import asyncio
import subprocess
import time
from pathlib import Path

import pytest

from crabtalk.cli.completion import SHELLS
from crabtalk.cli.main import COMMANDS
from crabtalk.protocol import Server, wire
from tests.cli.canned_daemon import serve_daemon
from tests.cli.cli_process import CRABTALK, run_crabtalk
from tests.daemon.in_process_daemon import run_daemon


async def complete_words(*words: str, home: Path) -> list[str]:
    """Return the completions of the last word."""
    outcome = await run_crabtalk(
        COMP_WORDS=" ".join(["crabtalk", *words]),
        COMP_CWORD=str(len(words)),
        _CRABTALK_COMPLETE="bash_complete",
        CRABTALK_HOME=str(home),
    )
    assert outcome.err == ""
    return [line.removeprefix("plain,") for line in outcome.out.splitlines() if line]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.req("cli.completion")
async def test_each_shell_gets_its_own_script(shell: str) -> None:
    script = (await run_crabtalk("completions", shell)).output
    assert f"_CRABTALK_COMPLETE={shell}_complete" in script
    assert (await run_crabtalk("completions", "csh")).code == 2


@pytest.mark.req("cli.completion")
async def test_bash_completes_with_the_script(home: Path) -> None:
    """Runs the completion script in bash."""
    script = f"""
        PATH={CRABTALK.parent}:$PATH
        eval "$(crabtalk completions bash)"
        COMP_WORDS=(crabtalk conv) COMP_CWORD=1
        _crabtalk_completion crabtalk conv crabtalk
        echo "${{COMPREPLY[@]}}"
    """
    command = ["bash", "--norc", "-c", script]
    outcome = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=True
    )
    assert outcome.stdout == "conversations\n"


@pytest.mark.req("cli.completion")
async def test_commands_and_options_are_completed(home: Path) -> None:
    assert await complete_words("", home=home) == list(COMMANDS)
    assert await complete_words("s", home=home) == ["search", "skills", "stats"]
    assert await complete_words("--no", home=home) == ["--no-start"]
    assert await complete_words("events", "s", home=home) == ["subscribe"]
    assert await complete_words("ask", "--gu", home=home) == ["--guest"]


@pytest.mark.req("cli.completion.names")
async def test_agents_and_models_are_completed_from_a_running_daemon(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        home = daemon.home
        assert await complete_words("ask", "--agent", "", home=home) == ["crab", "twin"]
        assert await complete_words("kill", "t", home=home) == ["twin"]
        assert await complete_words("models", "use", "", home=home) == ["scripted"]
        other = tmp_path / "other"
        assert await complete_words("--home", str(home), "kill", "c", home=other) == ["crab"]


@pytest.mark.req("cli.completion.names")
async def test_no_daemon_is_started_for_a_completion(home: Path) -> None:
    assert await complete_words("kill", "", home=home) == []
    assert not home.exists()


class SlowAgentListDaemon(Server):
    async def list_agents(self, request: wire.ListAgentsMsg) -> wire.AgentList:
        await asyncio.Event().wait()
        return wire.AgentList()


@pytest.mark.req("cli.completion.names")
@pytest.mark.clock
async def test_completion_does_not_wait_for_a_slow_daemon(home: Path) -> None:
    async with serve_daemon(SlowAgentListDaemon(), home):
        start = time.monotonic()
        assert await complete_words("kill", "", home=home) == []
        assert time.monotonic() - start < 5
