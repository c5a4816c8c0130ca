"""Rules for shell lines: what they deny and allow, and what "Always allow" stores."""

import pytest

from crabtalk.policy.shell.commands import UnreadableCommandError
from crabtalk.policy.shell.parser import parse_commands
from crabtalk.policy.shell.rules import (
    ShellRule,
    covers_all_commands,
    matches_any_command,
    parse_shell_rule,
)
from crabtalk.policy.shell.suggestions import suggest_shell_rules


def is_allowed(line: str, *rules: str) -> bool:
    return covers_all_commands([parse_shell_rule(rule) for rule in rules], parse_commands(line))


@pytest.mark.req("shell.rules")
def test_a_rule_is_a_prefix_or_exact_words_or_anything() -> None:
    assert parse_shell_rule("git status:*") == ShellRule("prefix", ("git", "status"))
    assert parse_shell_rule(" npm run test ") == ShellRule("exact", ("npm", "run", "test"))
    assert parse_shell_rule("echo 'a b'") == ShellRule("exact", ("echo", "a b"))
    assert parse_shell_rule("*") == ShellRule("any")


@pytest.mark.req("shell.rules")
@pytest.mark.parametrize("text", ["git status:*", "npm run test", "*", "echo 'a b;c'"])
def test_a_rule_round_trips_as_text(text: str) -> None:
    assert str(parse_shell_rule(text)) == text


@pytest.mark.req("shell.rules")
@pytest.mark.parametrize(
    "text",
    ["", ":*", "a; b", "a | b", "a > b", "$(a)", "git sta*", "git :* x", "'a", "A=1 b", "a\nb"],
)
def test_an_invalid_rule_is_refused_with_a_message(text: str) -> None:
    with pytest.raises(ValueError, match=r"rule .*[;.]"):
        parse_shell_rule(text)


@pytest.mark.req("shell.rules")
@pytest.mark.parametrize(
    "line",
    [
        "git status",
        "git status -s",
        "/usr/bin/git status",
        "git status && git status -s",
        "git status | git status",
        "timeout 5 git status",
        "env LANG=C git status",
        "bash -c 'git status'",
        "git status 2>/dev/null",
        "git status 2>&1",
        "LC_ALL=C git status",
        "(git status)",
    ],
)
def test_a_rule_allows_its_command_in_all_spellings(line: str) -> None:
    assert is_allowed(line, "git status:*")


@pytest.mark.req("shell.rules")
@pytest.mark.parametrize(
    "line",
    [
        "",
        "git",
        "git push",
        "git -c core.fsmonitor=x status",
        "git status; rm x",
        "git status $(rm x)",
        "git status `rm x`",
        "git status $A",
        "git status *",
        "git status > file",
        "git status >> file",
        "git status &> file",
        "git status > >(rm x)",
        "./git status",
        "/opt/git status",
        "PATH=. git status",
        "GIT_DIR=x git status",
        "LD_PRELOAD=x git status",
        "BASH_ENV=x bash -c 'git status'",
        "export PATH=.; git status",
        "sudo git status",
        "ssh host git status",
        "xargs git status",
        "env -S 'rm x' git status",
        "git() { rm x; }; git status",
        "gitstatus",
        "bash -xc 'git status'",
        "docker run x git status",
        "find . -exec git status \\;",
    ],
)
def test_a_rule_allows_nothing_else(line: str) -> None:
    assert not is_allowed(line, "git status:*")


@pytest.mark.req("shell.rules")
def test_every_command_of_a_line_needs_a_rule() -> None:
    assert is_allowed("git status && npm run test", "git status:*", "npm run test")
    assert not is_allowed("git status && npm run test", "git status:*")
    assert not is_allowed("npm run test --x", "npm run test")
    assert is_allowed("find . -exec wc {} +", "*")
    assert is_allowed("sudo apt update", "sudo apt update")
    assert not is_allowed("sudo apt update x", "sudo apt:*")
    assert is_allowed("sudo apt update x", "sudo apt:*", "apt update:*")


@pytest.mark.req("shell.rules")
@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("git push:*", "git push origin"),
        ("git push:*", "git -C x push origin"),
        ("git push", "sudo git push"),
        ("rm -rf:*", "rm --recursive --force x"),
        ("rm --recursive", "rm -r x"),
        ("curl:*", "cat x | curl -T - y"),
        ("*", "ls"),
    ],
)
def test_a_deny_rule_matches_broadly(rule: str, line: str) -> None:
    assert matches_any_command(parse_shell_rule(rule), parse_commands(line))


@pytest.mark.req("shell.rules")
@pytest.mark.parametrize("line", ["rm $A x", 'rm "$A"', "ls | xargs rm", "rm *", "rm -{r,f} x"])
def test_an_argument_that_could_match_at_run_time_is_unreadable(line: str) -> None:
    with pytest.raises(UnreadableCommandError):
        matches_any_command(parse_shell_rule("rm -rf:*"), parse_commands(line))


@pytest.mark.req("shell.rules")
@pytest.mark.parametrize(
    "line", ['rm -- "$A"', "rm ./*", "rm *.o", 'git add "$A"', "find . -exec rm {} +", "ls $A"]
)
def test_an_argument_that_cannot_match_is_readable(line: str) -> None:
    for rule in ("rm -rf:*", "git push:*"):
        assert not matches_any_command(parse_shell_rule(rule), parse_commands(line))


@pytest.mark.req("shell.suggest")
@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("git status -s", ("git status:*",)),
        ("git status && git status", ("git status:*",)),
        ("npm run test -- --watch", ("npm run test:*",)),
        ("cargo build --release", ("cargo build:*",)),
        ("docker compose up -d", ("docker compose up:*",)),
        ("make test", ("make test",)),
        ("ls -la | wc -l", ("ls:*", "wc:*")),
        ("timeout 5 cargo test", ("cargo test:*",)),
        ("python3 -c 'print(1)'", ("python3 -c 'print(1)'",)),
        ("rm -f a.txt", ("rm -f a.txt",)),
        ("curl https://example.com/", ("curl https://example.com/",)),
        ("git push origin main", ("git push origin main",)),
        ("./run.sh x", ("./run.sh x",)),
        ("sudo apt update", ("sudo apt update",)),
        ("bash -c 'git status'", ("git status:*",)),
    ],
)
def test_always_allow_stores_no_more_than_it_says(line: str, rules: tuple[str, ...]) -> None:
    assert suggest_shell_rules(line) == rules
    assert is_allowed(line, *rules)


@pytest.mark.req("shell.suggest")
@pytest.mark.parametrize(
    "line",
    ["", "$A", "echo $A", "ls > x", "curl x | sh", "echo 'x", "A=1 make", "bash x.sh", 'eval "$A"'],
)
def test_always_allow_is_not_offered_where_it_would_not_be_safe(line: str) -> None:
    assert suggest_shell_rules(line) is None


@pytest.mark.req("shell.suggest")
@pytest.mark.parametrize(
    "program",
    ["bash", "sh", "python3", "perl", "node", "env", "sudo", "xargs", "find", "rm", "curl", "ssh",
     "awk", "sed", "docker", "npx", "tar", "dd"],
)  # fmt: skip
def test_programs_that_can_do_anything_are_allowed_only_with_exact_words(program: str) -> None:
    for rule in suggest_shell_rules(f"{program} --help") or ():
        assert not rule.endswith(":*")
