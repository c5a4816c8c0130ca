"""The command line itself: help that fits a screen, a version, usage errors."""

import subprocess
import sys
from pathlib import Path

import pytest

import crabtalk

CRABTALKD = Path(sys.executable).with_name("crabtalkd")


def crabtalkd(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([CRABTALKD, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("run", "--help")])
def test_help_fits_a_screen_and_has_examples(words: tuple[str, ...]) -> None:
    result = crabtalkd(*words)
    assert result.returncode == 0
    assert "crabtalkd run" in result.stdout
    lines = result.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_the_version_is_the_packages() -> None:
    assert crabtalkd("--version").stdout == f"crabtalkd {crabtalk.__version__}\n"


@pytest.mark.parametrize("words", [("nonsense",), ("run", "--nonsense")])
def test_words_it_does_not_know_are_a_usage_error(words: tuple[str, ...]) -> None:
    result = crabtalkd(*words)
    assert result.returncode == 2
    assert "nonsense" in result.stderr


def test_an_empty_home_is_refused_rather_than_taken_for_the_current_directory() -> None:
    result = crabtalkd("run", "--home", "")
    assert result.returncode == 2
    assert "it is empty" in result.stderr


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "crabtalk.daemon", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == f"crabtalkd {crabtalk.__version__}\n"


def test_starting_loads_nothing_that_is_needed_only_later() -> None:
    code = "import sys, crabtalk.daemon, crabtalk.daemon.cli; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(said.stdout.split()) & {"aiohttp", "msgspec", "tomlkit", "crabtalk.model"}
