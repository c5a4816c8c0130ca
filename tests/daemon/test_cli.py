"""The command line itself: help that fits a screen, a version, usage errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import crabtalk

CRABTALKD = Path(sys.executable).with_name("crabtalkd")


def run_crabtalkd(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([CRABTALKD, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("run", "--help")])
def test_help_fits_a_screen_and_has_examples(words: tuple[str, ...]) -> None:
    result = run_crabtalkd(*words)
    assert result.returncode == 0
    assert "crabtalkd run" in result.stdout
    lines = result.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_the_version_is_that_of_the_package() -> None:
    assert run_crabtalkd("--version").stdout == f"crabtalkd {crabtalk.__version__}\n"


@pytest.mark.parametrize("words", [("nonsense",), ("run", "--nonsense")])
def test_unknown_words_are_a_usage_error(words: tuple[str, ...]) -> None:
    result = run_crabtalkd(*words)
    assert result.returncode == 2
    assert "nonsense" in result.stderr


def test_an_empty_home_is_refused_rather_than_taken_for_the_current_directory() -> None:
    result = run_crabtalkd("run", "--home", "")
    assert result.returncode == 2
    assert "it is empty" in result.stderr


@pytest.mark.req("config.check")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[limits]\nmcp_wait_seconds = "a"\n', "mcp_wait_seconds must be a whole number"),
        ('[daemon]\ntls_cert = "c"\ntls_key = "k"\n', "cannot be used"),
        ("[llm]\nbogus = 1\n", "[llm] has bogus, which means nothing there"),
        ("[llm", "is not valid TOML"),
    ],
)
def test_check_reports_an_invalid_config_without_a_daemon(
    home: Path, text: str, sentence: str
) -> None:
    home.mkdir()
    path = home / "config.toml"
    path.write_text(text)
    result = run_crabtalkd("check", "--home", str(home))
    assert (result.returncode, result.stdout) == (1, "")
    assert str(path) in result.stderr
    assert sentence in result.stderr
    result = run_crabtalkd("check", "--json", "--home", str(home))
    assert result.returncode == 1
    assert sentence in json.loads(result.stdout)["problem"]
    assert [path.name for path in home.iterdir()] == ["config.toml"]


@pytest.mark.req("config.check")
def test_check_names_unknown_keys_without_failing(home: Path) -> None:
    assert run_crabtalkd("check", "--home", str(home)).returncode == 0
    home.mkdir()
    path = home / "config.toml"
    path.write_text('[daemn]\n[daemon]\nmodl = "m"\n[skills]\nexternl = true\n')
    result = run_crabtalkd("check", "--home", str(home))
    assert result.returncode == 0
    assert result.stderr == (
        f"crabtalkd: {path} has [daemn], which means nothing here and is ignored\n"
        f"crabtalkd: {path} has modl in [daemon], which means nothing here and is ignored\n"
        f"crabtalkd: {path} has externl in [skills], which means nothing here and is ignored\n"
        f"{path} can be used\n"
    )


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "crabtalk.daemon", "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == f"crabtalkd {crabtalk.__version__}\n"


def test_starting_loads_nothing_that_is_needed_only_later() -> None:
    loaded = list_modules_loaded_by("import crabtalk.daemon, crabtalk.daemon.cli")
    assert "click" in loaded
    assert not loaded & {"aiohttp", "google", "msgspec", "tomlkit", "crabtalk.model"}


def test_asking_the_daemon_loads_neither_the_engine_nor_the_models(home: Path) -> None:
    loaded = list_modules_loaded_by(
        f"from crabtalk.daemon.cli import main; main(['status', '--home', {str(home)!r}])"
    )
    assert "crabtalk.client" in loaded
    assert not loaded & {"aiohttp", "crabtalk.model", "crabtalk.runtime"}


def list_modules_loaded_by(code: str) -> set[str]:
    """The modules that are loaded when the code ends, even with an error."""
    program = f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {code}"
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return set(result.stdout.split())
