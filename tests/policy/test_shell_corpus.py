"""The corpus: 200 and more ways around a deny rule, and as many ordinary lines."""

import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from crabtalk.policy.shell.commands import UnreadableCommandError
from crabtalk.policy.shell.harmless_commands import is_harmless_line
from crabtalk.policy.shell.rules import find_denied_entry

HERE = Path(__file__).parent
EVASIONS: list[dict[str, Any]] = tomllib.loads((HERE / "evasions.toml").read_text())["evasion"]
ORDINARY: dict[str, Any] = tomllib.loads((HERE / "harmless.toml").read_text())
SECONDS = 10


@pytest.mark.req("shell.evasions")
def test_the_corpus_has_at_least_200_of_each() -> None:
    assert len({one["line"] for one in EVASIONS}) >= 200
    assert len({one["line"] for one in ORDINARY["line"]}) >= 200
    assert sum(one.get("harmless", False) for one in ORDINARY["line"]) >= 100


@pytest.mark.req("shell.evasions")
@pytest.mark.parametrize("evasion", EVASIONS, ids=lambda one: one["line"])
def test_no_evasion_gets_past_its_rule(evasion: dict[str, Any]) -> None:
    try:
        assert find_denied_entry(evasion["line"], [evasion["deny"]]) == evasion["deny"]
    except UnreadableCommandError as error:
        assert str(error)  # noqa: PT017 - unreadable lines are refused as well


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """Write programs that only leave a marker in their working directory."""
    directory = tmp_path / "stubs"
    directory.mkdir()
    for name in ("rm", "curl", "git", "chmod"):
        stub = directory / name
        fallback = (
            'case "$*" in *alias.z*) exec /usr/bin/git "$@";; esac\n' if name == "git" else ""
        )
        stub.write_text(f"#!/bin/sh\n{fallback}: > marker\n")
        stub.chmod(0o755)
    return directory


@pytest.mark.req("shell.evasions")
def test_every_evasion_really_runs_the_denied_program(tmp_path: Path, stubs: Path) -> None:
    """Otherwise the corpus would prove nothing. The program is a stub, or the real rm on x."""

    def runs(number: int) -> bool:
        work = tmp_path / str(number)
        (work / "x").mkdir(parents=True)
        subprocess.run(
            ["bash", "-c", honest[number]["line"]],
            cwd=work,
            env={"PATH": f"{stubs}:/usr/bin:/bin", "HOME": str(work)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
        return (work / "marker").exists() or not (work / "x").exists()

    honest = [one for one in EVASIONS if one.get("runs", True) and is_installed(one["line"])]
    assert len(honest) >= 200
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(runs, range(len(honest))))
    assert [one["line"] for one, ran in zip(honest, results, strict=True) if not ran] == []


def is_installed(line: str) -> bool:
    """Whether the uncommon programs in a line exist on this machine."""
    from shutil import which

    rare = "choom chrt dash ed fakeroot flock ionice linux64 perl prlimit python3"
    rare += " script setpriv taskset"
    return all(which(name) for name in rare.split() if name in line.split())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    for name in ("README.md", "package.json", "src/main.py", "src/util.py", "tests/test_a.py"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("x\n")
    return directory


@pytest.mark.req("shell.ordinary")
def test_ordinary_lines_are_readable_and_not_denied() -> None:
    for one in ORDINARY["line"]:
        assert find_denied_entry(one["line"], ORDINARY["deny"]) is None, one["line"]


@pytest.mark.req("shell.harmless")
def test_exactly_the_lines_marked_harmless_run_without_a_question(
    tmp_path: Path, project: Path
) -> None:
    marked = {one["line"] for one in ORDINARY["line"] if one.get("harmless", False)}
    found = {
        one["line"]
        for one in ORDINARY["line"]
        if is_harmless_line(one["line"], project, tmp_path / "home")
    }
    assert found == marked


@pytest.mark.req("shell.harmless")
def test_no_evasion_is_harmless(tmp_path: Path, project: Path) -> None:
    assert not [
        one for one in EVASIONS if is_harmless_line(one["line"], project, tmp_path / "home")
    ]
