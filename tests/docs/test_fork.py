"""Follow docs/fork-an-agent.md as a reader does: create the file, then run every command."""

import sys
from pathlib import Path

import pytest

from tests.docs.book_pages import find_blocks
from tests.docs.reader_sandbox import ReaderSandbox, open_sandbox
from tests.docs.test_commands import list_commands

PAGE = "docs/fork-an-agent.md"
# An editor is opened only at a terminal.
AT_TERMINAL = (
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(['sh', '-c', sys.argv[1]])))"
)


def run_at_terminal(reader: ReaderSandbox, command: str) -> str:
    """Run a command at a terminal, with an editor that changes nothing."""
    return reader.run_command([sys.executable, "-c", AT_TERMINAL, f"export EDITOR=true; {command}"])


@pytest.mark.timeout(120)
@pytest.mark.req("book.commands")
def test_the_agent_of_the_page_can_be_asked_forked_edited_and_have_a_guest(tmp_path: Path) -> None:
    reviewer, *_ = find_blocks(PAGE, "toml")
    with open_sandbox(tmp_path) as reader:
        reader.run_shell("crabtalk agents list")  # starts a daemon that does not know the agent
        agents = reader.home / "agents"
        (agents / "reviewer.toml").write_text(reviewer.code)
        outputs = {command: run_at_terminal(reader, command) for command in list_commands(PAGE)}
        (agents / "copied.toml").write_bytes((agents / "reviewer.toml").read_bytes())
        listed = reader.run_shell("crabtalkd reload; crabtalk agents list")
        shown = reader.run_shell("crabtalk conversations show reviewer")
    assert (
        "+high at seven" in outputs['git diff | crabtalk ask --agent reviewer "What would break?"']
    )
    assert "And you?" in outputs['crabtalk ask --agent reviewer --guest strict "And you?"']
    assert "strict ·" in shown, "the guest's words are shown with its name"
    assert {"reviewer", "strict", "copied"} <= {line.split()[0] for line in listed.splitlines()}
