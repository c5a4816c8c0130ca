"""Lines that run without approval: they only read, inside the working directory."""

import subprocess
from pathlib import Path

import pytest

from crabtalk.policy.shell.harmless_commands import is_harmless_line


@pytest.fixture
def home(tmp_path: Path) -> Path:
    directory = tmp_path / "work" / "home"
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text("key\n")
    return directory


@pytest.fixture
def work(tmp_path: Path, home: Path) -> Path:
    directory = tmp_path / "work"
    (directory / "src").mkdir()
    (directory / "a.txt").write_text("a\n")
    (directory / "outside").symlink_to("/etc")
    (directory / "secret").symlink_to(home / "config.toml")
    return directory


@pytest.mark.req("shell.harmless")
@pytest.mark.parametrize(
    "line",
    [
        "cat /etc/passwd",
        "cat ../x",
        "cat src/../../x",
        "cat ~/x",
        "cat outside/passwd",
        "ls outside",
        "cat secret",
        "cat home/config.toml",
        "ls home",
        "grep -r key .",
        "grep -r key",
        "rg key",
        "find . -type f",
        "find",
        "du -a",
        "wc -l < /etc/passwd",
        "cat < home/config.toml",
        "grep -f /etc/passwd a.txt",
        "cat *",
        "cat $A",
        'cat "$(pwd)"',
        "echo $A",
        "ls > x",
        "ls >> a.txt",
        "A=1 ls",
        "./ls",
        "/bin/ls",
        "src/ls",
        "ls() { rm x; }; ls",
        "find src -exec rm {} +",
        "find src -delete",
        "find src -fprint x",
        "find src -ok rm {} \\;",
        "find -L src",
        "sort -o a.txt a.txt",
        "sort --output=x a.txt",
        "sort --compress-program=sh a.txt",
        "uniq a.txt b.txt",
        "xxd a.txt b.txt",
        "date -s tomorrow",
        "date 01010101",
        "hostname x",
        "tail -f a.txt",
        "tree -o x src",
        "rg --pre sh x src",
        "jq -n env a.txt",
        "jq -n '$ENV'",
        "diff -r src src",
        "git push",
        "git commit -m x",
        "git -c core.pager=x log",
        "git -C src status",
        "git --exec-path=x status",
        "git log --output=x",
        "git diff --ext-diff",
        "git diff --no-index a.txt /etc/passwd",
        "git show --textconv",
        "git branch new",
        "git branch -D x",
        "git tag v1",
        "git stash",
        "git remote add a b",
        "git reflog expire",
        "git config --list",
        "env",
        "printenv",
        "ps aux",
        "bash -c ls",
        "xargs ls",
        "timeout 5 ls",
        "sed -n 1p a.txt",
        "awk 1 a.txt",
        "python3 -c 1",
        "unknown --version",
        "[ -f a.txt ]",
        "",
        "ls 'x",
    ],
)
def test_a_line_that_could_do_more_needs_approval(line: str, work: Path, home: Path) -> None:
    assert not is_harmless_line(line, work, home)


@pytest.mark.req("shell.harmless")
@pytest.mark.parametrize(
    "line", ["ls", "cat a.txt", "grep -r key src", "find src", "rg key src", "git status", "pwd"]
)
def test_a_home_inside_the_working_directory_blocks_only_commands_that_would_read_it(
    line: str, work: Path, home: Path
) -> None:
    assert is_harmless_line(line, work, home)


@pytest.mark.req("shell.harmless")
@pytest.mark.parametrize(
    "setting",
    [
        "core.fsmonitor",
        "diff.external",
        "diff.x.textconv",
        "core.pager",
        "filter.x.clean",
        "alias.log",
    ],
)
def test_git_needs_approval_if_the_repository_names_a_program(
    setting: str, work: Path, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    subprocess.run(["git", "init", "-q", work], check=True)
    assert is_harmless_line("git status", work, away)
    assert is_harmless_line("git status", work / "src", away)
    subprocess.run(["git", "-C", work, "config", setting, "touch x"], check=True)
    assert not is_harmless_line("git status", work, away)
    assert not is_harmless_line("git log", work / "src", away)


@pytest.mark.req("shell.harmless")
def test_git_needs_approval_in_a_bare_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", tmp_path / "bare"], check=True)
    assert not is_harmless_line("git log", tmp_path / "bare", tmp_path / "home")


@pytest.mark.req("shell.harmless")
def test_git_needs_approval_with_nested_repositories(tmp_path: Path) -> None:
    """Git reads the inner repository with its own settings, which may name a program."""
    outer, inner, away = tmp_path / "outer", tmp_path / "outer" / "inner", tmp_path / "home"
    for repository in (outer, inner):
        subprocess.run(["git", "init", "-q", repository], check=True)
    assert is_harmless_line("git status", outer, away)
    git: list[str] = ["git", "-C", str(inner), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run(["git", "-C", outer, "add", "inner"], check=True, capture_output=True)
    subprocess.run(["git", "-C", inner, "config", "core.fsmonitor", "touch x"], check=True)
    assert not is_harmless_line("git status", outer, away)
