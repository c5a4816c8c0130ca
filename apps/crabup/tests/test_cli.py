"""The command line: help that fits a screen, exit statuses, and the cost of a start."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

import crabup
from apps.crabup.help_pages import PAGE
from apps.crabup.tests.machine import CrabupMachine
from crabup.cli import main
from crabup.service_commands import VERBS

PAGE_TEXT = PAGE.read_page()


def list_commands(group: click.Command, *words: str) -> list[tuple[str, ...]]:
    """The words of all commands, groups included."""
    subcommands = group.commands.items() if isinstance(group, click.Group) else ()
    return [
        words,
        *(path for name, command in subcommands for path in list_commands(command, *words, name)),
    ]


COMMANDS = [*list_commands(main), ("daemon",), *(("daemon", verb) for verb in VERBS)]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.req("crabup.cli")
def test_help_fits_a_screen_and_has_examples(
    machine: CrabupMachine, words: tuple[str, ...]
) -> None:
    output = machine.run_crabup(*words, "--help").output
    assert output == f"{PAGE.render_help(list(words))}\n"
    assert " ".join(["crabup", *words]) in output.partition("Example")[2]
    lines = output.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


@pytest.mark.req("crabup.cli")
def test_the_help_on_the_page_is_what_the_command_prints() -> None:
    assert PAGE.refresh_blocks(PAGE_TEXT) == PAGE_TEXT, f"run python -m {PAGE.script}"
    assert sorted(PAGE.list_shown_commands(PAGE_TEXT)) == sorted(map(" ".join, COMMANDS))


@pytest.mark.req("crabup.cli")
def test_a_stale_page_is_noticed() -> None:
    stale = PAGE_TEXT.replace("--help ", "--hilfe ")
    assert stale != PAGE_TEXT
    assert PAGE.refresh_blocks(stale) == PAGE_TEXT
    with pytest.raises(SystemExit, match="no command `crabup sing`"):
        PAGE.refresh_blocks("<!-- help: crabup sing -->\n\n```text\n```\n")


@pytest.mark.parametrize(
    "words",
    [("nonsense",), ("nonsense", "daemon"), ("daemon", "sing"), ("pkg", "sing"), ("ps", "--sing")],
    ids=" ".join,
)
@pytest.mark.req("crabup.cli")
def test_unknown_words_are_a_usage_error(machine: CrabupMachine, words: tuple[str, ...]) -> None:
    outcome = machine.run_crabup(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert "Error: " in outcome.err


@pytest.mark.parametrize(
    "words",
    ["list", "pull cron", "rm cron", "update", "ps", "dice stop", "dice restart", "pkg list",
     "pkg add notes --path .", "pkg remove notes"],
)  # fmt: skip
@pytest.mark.req("crabup.cli")
def test_every_command_brings_all_it_needs(machine: CrabupMachine, words: str) -> None:
    machine.add_stub("uv", '[ "$2" = list ] && echo "crabtalk-cron v0.3.0"; exit 0')
    outcome = machine.run_installed(*words.split())
    assert "Traceback" not in outcome.err
    assert outcome == machine.run_crabup(*words.split())


def test_the_version_is_that_of_the_package(machine: CrabupMachine) -> None:
    assert machine.run_crabup("--version").output == f"crabup {crabup.__version__}\n"


def test_an_empty_home_is_refused_rather_than_taken_for_the_current_directory(
    machine: CrabupMachine,
) -> None:
    outcome = machine.run_crabup("ps", "--home", "")
    assert outcome.code == 2
    assert "it is empty" in outcome.err


def test_the_home_may_be_an_option(machine: CrabupMachine, tmp_path: Path) -> None:
    machine.add_component()
    home = tmp_path / "another home"
    assert machine.run_crabup("dice", "start", "--home", home).code == 0
    try:
        rows = json.loads(machine.run_crabup("ps", "--json", "--home", home).output)["services"]
        assert [row["name"] for row in rows] == ["dice"]
        assert machine.list_services() == {}
    finally:
        machine.run_crabup("dice", "stop", "--home", home)


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-m", "crabup", "--version"]
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert output == f"crabup {crabup.__version__}\n"


@pytest.mark.req("crabup.cli")
def test_a_closed_pipe_is_no_error(machine: CrabupMachine) -> None:
    path = machine.home / "logs" / "dice.log"
    path.parent.mkdir(parents=True)
    path.write_text("line\n" * 100_000)
    command = f"{sys.executable} -m crabup dice logs -n 100000 | head -1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command],
        env=machine.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "line\n", "")


@pytest.mark.req("crabup.light")
def test_help_loads_neither_client_nor_component() -> None:
    code = (
        "import sys, crabup.cli as cli\n"
        "cli.main(['pkg', '--help'], standalone_mode=False)\n"
        "print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split())
    assert not loaded & {"asyncio", "google.protobuf", "tomlkit", "crabtalk.client", "ssl"}
