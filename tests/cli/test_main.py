"""The command line: help that fits a screen, version, errors without a daemon, start-up time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import crabtalk
from crabtalk.cli.main import COMMANDS as LISTED
from docs.command_help import PAGES
from tests.cli.cli_process import CRABTALK, WARM
from tests.cli.timing import assert_quick


def run_command(*words: str | Path, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [CRABTALK, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )


COMMANDS = [tuple(name.split()) for name in PAGES[0].list_commands()]
RUNS = [
    ("ask", "tide"),
    ("conversations", "list"),
    ("conversations", "show", "crab"),
    ("conversations", "export", "crab", "--as", "md"),
    ("conversations", "rm", "crab", "--yes"),
    ("archives", "crab"),
    ("search", "tide"),
    ("compact", "crab"),
    ("kill", "crab"),
    ("memory", "search", "crab", "tide"),
    ("memory", "show", "crab", "tide"),
    ("memory", "list", "crab"),
    ("memory", "dump", "crab", "brain"),
    ("memory", "load", "crab", "brain", "--yes"),
    ("events", "list"),
    ("events", "subscribe", "tide", "crab"),
    ("events", "remove", "1"),
    ("events", "publish", "tide", "high"),
    ("events", "watch"),
    ("agents", "list"),
    ("agents", "show", "crab"),
    ("agents", "create", "owl", "--prompt", "You are owl."),
    ("agents", "edit", "crab", "--config", "brain/agent.toml"),
    ("agents", "rm", "crab", "--yes"),
    ("agents", "rename", "crab", "owl"),
    ("agents", "fork", "crab", "owl"),
    ("agents", "explain", "crab"),
    ("approvals",),
    ("approvals", "list"),
    ("approvals", "watch"),
    ("approvals", "allow", "r-1"),
    ("approvals", "deny", "r-1"),
    ("models", "list"),
    ("models", "use", "scripted"),
    ("skills",),
    ("mcp", "list"),
    ("mcp", "show", "crab", "tides"),
    ("mcp", "add", "crab", "tides", "--", "tides"),
    ("mcp", "rm", "crab", "tides"),
    ("mcp", "import", "crab", "brain/mcp.json"),
    ("mcp", "export", "crab"),
    ("mcp", "watch"),
    ("stats",),
    ("reload",),
]
FIRST = list({run[0]: run for run in reversed(RUNS)}.values())  # of each command
ALONE = [("doctor",), ("completions", "bash")]  # need no daemon


def test_the_lists_here_have_all_commands() -> None:
    for words in COMMANDS:
        assert any(words == run[: len(words)] for run in [*RUNS, *ALONE]), words


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.req("cli.help")
def test_help_fits_a_screen_and_has_examples(words: tuple[str, ...]) -> None:
    code, out, err = WARM.run(*words, "--help")
    assert (code, err) == (0, "")
    assert out == f"{PAGES[0].render_help(list(words))}\n"
    assert " ".join(["crabtalk", *words]) in out.partition("Example")[2]
    lines = out.splitlines()
    assert len(lines) <= 24, len(lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
@pytest.mark.req("cli.no_daemon")
def test_without_a_daemon_the_error_says_how_to_start_one(
    words: tuple[str, ...], home: Path, tmp_path: Path
) -> None:
    env = {**os.environ, "CRABTALK_HOME": str(home)}
    assert WARM.run("--no-start", *place_files(words, tmp_path), env=env) == (
        1,
        "",
        format_no_daemon_advice(home),
    )


@pytest.mark.parametrize("words", FIRST, ids=" ".join)
@pytest.mark.req("cli.no_daemon")
def test_every_command_imports_all_it_needs(
    words: tuple[str, ...], home: Path, tmp_path: Path
) -> None:
    """Runs as a fresh process with nothing preloaded."""
    outcome = run_command("--no-start", *place_files(words, tmp_path), CRABTALK_HOME=str(home))
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (
        1,
        "",
        format_no_daemon_advice(home),
    )


def place_files(words: tuple[str, ...], path: Path) -> list[str]:
    """Create the files that a command names, and return its words with their paths."""
    (path / "brain" / "notes").mkdir(parents=True)
    (path / "brain" / "agent.toml").write_text('prompt = "You are crab."')
    (path / "brain" / "mcp.json").write_text('{"mcpServers": {"tides": {"command": "tides"}}}')
    return [str(path / word) if word.startswith("brain") else word for word in words]


def format_no_daemon_advice(home: Path) -> str:
    return f"crabtalk: no daemon answers in {home}; start one with `crabtalkd run`\n"


@pytest.mark.req("cli.no_daemon")
def test_the_given_home_is_in_the_advice(home: Path) -> None:
    outcome = run_command("--no-start", "search", "tide", "--home", home)
    assert outcome.stderr.endswith(f"start one with `crabtalkd run --home {home}`\n")


def test_the_version_is_the_packages() -> None:
    assert run_command("--version").stdout == f"crabtalk {crabtalk.__version__}\n"


@pytest.mark.parametrize("words", [("nonsense",), ("memory", "nonsense"), ("search",)])
@pytest.mark.req("cli.exit_codes")
def test_unknown_words_are_a_usage_error(words: tuple[str, ...]) -> None:
    outcome = run_command(*words)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert "Error: " in outcome.stderr


def test_an_empty_home_is_refused() -> None:
    outcome = run_command("search", "tide", "--home", "")
    assert outcome.returncode == 2
    assert "it is empty" in outcome.stderr


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-m", "crabtalk.cli", "--version"]
    outcome = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert outcome == f"crabtalk {crabtalk.__version__}\n"


@pytest.mark.req("cli.light")
def test_help_loads_neither_client_nor_store() -> None:
    code = (
        "import sys, crabtalk.cli.main as cli\n"
        "cli.main(['memory', '--help'], standalone_mode=False)\n"
        "print(*sys.modules)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(outcome.stdout.split())
    assert not loaded & {"asyncio", "google.protobuf", "msgspec", "crabtalk.client", "ssl"}


@pytest.mark.req("cli.light")
def test_a_memory_in_a_file_needs_no_client(tmp_path: Path) -> None:
    from crabtalk.memory import AddEntry, Memory

    with Memory.open(tmp_path / "m.crmem") as memory:
        memory.apply(AddEntry("tide", "High."))
    code = (
        "import sys, crabtalk.cli.main as cli\n"
        f"cli.main(['memory', 'list', '--file', {str(tmp_path / 'm.crmem')!r}], "
        "standalone_mode=False)\n"
        "print(*sys.modules)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not set(outcome.stdout.split()) & {"google.protobuf", "crabtalk.client"}


@pytest.mark.req("cli.light")
def test_help_loads_no_commands() -> None:
    code = (
        "import sys, crabtalk.cli.main as cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "print(*(name for name in sys.modules if name.startswith('crabtalk')))"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert set(outcome.stdout.splitlines()[-1].split()) == {
        *("crabtalk.cli", "crabtalk.cli.main", "crabtalk.cli.errors"),
        "crabtalk.cli.options",
        *("crabtalk", "crabtalk.lazy_imports", "crabtalk.service"),
        "crabtalk.service.command_line",
        *(
            f"crabtalk.service.command_line.{part}"
            for part in ("command_group", "options", "output")
        ),
    }


@pytest.mark.req("cli.help.quick")
@pytest.mark.clock
def test_help_is_printed_within_120_ms() -> None:
    def measure() -> float:
        start = time.perf_counter()
        assert run_command("--help").returncode == 0
        return time.perf_counter() - start

    assert_quick(measure, 0.12)


def test_a_narrow_screen_shows_one_column_of_commands() -> None:
    lines = run_command("--help", COLUMNS="50").stdout.splitlines()
    assert max(map(len, lines)) <= 60
    listed = lines[lines.index("Commands:") + 1 :]
    assert [line.split()[0] for line in listed[: len(LISTED)]] == list(LISTED)


def test_a_misspelled_command_gives_a_suggestion() -> None:
    outcome = run_command("agent")
    assert outcome.returncode == 2
    assert "agents" in outcome.stderr


FULL = Path("/dev/full")  # refuses every byte
UNWRITTEN = "crabtalk: the output cannot be written: No space left on device; send it elsewhere\n"


@pytest.mark.skipif(not FULL.exists(), reason="there is no such device here")
@pytest.mark.parametrize("words", [("--help",), ("doctor",), ("doctor", "--json")], ids=" ".join)
def test_output_that_cannot_be_written_gives_one_error(words: tuple[str, ...], home: Path) -> None:
    # With unbuffered output a failed write could not be told from one to a file.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with FULL.open("wb") as full:
        outcome = subprocess.run(
            [CRABTALK, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**env, "CRABTALK_HOME": str(home)},
        )
    assert (outcome.returncode, outcome.stderr) == (1, UNWRITTEN)


@pytest.mark.parametrize("words", ["--help", "doctor", "doctor --json", "nonsense"])
def test_closed_output_streams_are_no_error(words: str, home: Path) -> None:
    """Stdout and stderr may be closed, as by a service or cron."""
    quiet = run_in_shell(f"{words} >&- 2>&-", home)
    code, _, _ = WARM.run(*words.split(), env={**os.environ, "CRABTALK_HOME": str(home)})
    assert (quiet.returncode, quiet.stderr) == (code, "")
    assert (code == 2) is (words == "nonsense")


def run_in_shell(words: str, home: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sh", "-c", f'"$0" {words}', CRABTALK],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CRABTALK_HOME": str(home)},
    )
