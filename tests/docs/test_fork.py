"""The page about an agent to fork, as a reader follows it: the file, and then every command."""

import sys
from pathlib import Path

import pytest

from tests.docs.book_pages import find_blocks
from tests.docs.reader_sandbox import ReaderSandbox, open_sandbox
from tests.docs.test_commands import list_commands

PAGE = "docs/fork-an-agent.md"
# An editor is opened at a terminal only.
AT_TERMINAL = (
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(['sh', '-c', sys.argv[1]])))"
)


def run_at_terminal(reader: ReaderSandbox, command: str) -> str:
    """With an editor that changes nothing."""
    return reader.run_command([sys.executable, "-c", AT_TERMINAL, f"export EDITOR=true; {command}"])


@pytest.mark.timeout(120)
@pytest.mark.req("book.commands")
def test_the_agent_of_the_page_can_be_asked_forked_edited_and_have_a_guest(tmp_path: Path) -> None:
    reviewer, *_ = find_blocks(PAGE, "toml")
    with open_sandbox(tmp_path) as reader:
        reader.run_shell("crabtalk agents list")  # a daemon runs, and has never heard of it
        agents = reader.home / "agents"
        (agents / "reviewer.toml").write_text(reviewer.code)
        said = {command: run_at_terminal(reader, command) for command in list_commands(PAGE)}
        (agents / "copied.toml").write_bytes((agents / "reviewer.toml").read_bytes())
        listed = reader.run_shell("crabtalkd reload; crabtalk agents list")
        shown = reader.run_shell("crabtalk conversations show reviewer")
    assert "+high at seven" in said['git diff | crabtalk ask --agent reviewer "What would break?"']
    assert "And you?" in said['crabtalk ask --agent reviewer --guest strict "And you?"']
    assert "strict ·" in shown, "its words carry its name"
    assert {"reviewer", "strict", "copied"} <= {line.split()[0] for line in listed.splitlines()}
