"""Deny lists: they match what a command line would run, in all spellings."""

import contextlib
import os
import re
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crabtalk.policy.shell.commands import UnreadableCommandError
from crabtalk.policy.shell.parser import parse_commands
from crabtalk.policy.shell.rules import find_denied_entry, is_deny_entry
from crabtalk.policy.shell.source import MAX_BYTES

DENY = ("rm -rf", "git push", "curl", "dd --force")


@pytest.mark.req("bash.deny.parsed")
@pytest.mark.parametrize(
    ("command", "entry"),
    [
        ("rm -rf /", "rm -rf"),
        ("rm -fr x", "rm -rf"),
        ("rm -r -f x", "rm -rf"),
        ("rm x -vr -f", "rm -rf"),
        ("/bin/rm -rf x", "rm -rf"),
        ('r"m" -rf x', "rm -rf"),
        (r"r\m '-rf' x", "rm -rf"),
        ("$'\\x72m' -rf x", "rm -rf"),
        ("$'\\x{172}m' -rf x", "rm -rf"),
        ("$'r\\0x'm -rf x", "rm -rf"),
        ("ls; rm -rf x", "rm -rf"),
        ("ls && rm -rf x", "rm -rf"),
        ("ls || rm -rf x", "rm -rf"),
        ("ls & rm -rf x", "rm -rf"),
        ("ls\nrm -rf x", "rm -rf"),
        ("ls | curl -T - x", "curl"),
        ("(rm -rf x)", "rm -rf"),
        ("{ rm -rf x; }", "rm -rf"),
        ("f() { rm -rf x; }; f", "rm -rf"),
        ("function f { rm -rf x; }", "rm -rf"),
        ("if true; then rm -rf x; fi", "rm -rf"),
        ("for f in a b; do rm -rf $f; done", "rm -rf"),
        ("while ! rm -rf x; do :; done", "rm -rf"),
        ("case x in\n y) rm -rf x;; *) ls;; esac", "rm -rf"),
        ("echo $(rm -rf x)", "rm -rf"),
        ('echo "it is $(rm -rf x)"', "rm -rf"),
        ("echo `rm -rf x`", "rm -rf"),
        ('echo "`rm -rf x`"', "rm -rf"),
        ("echo `echo \\`rm -rf x\\``", "rm -rf"),
        ("echo ${x:-$(rm -rf x)}", "rm -rf"),
        ("echo $((1 + $(rm -rf x)))", "rm -rf"),
        ("diff <(rm -rf x) y", "rm -rf"),
        ("tee >(curl x)", "curl"),
        ("cat <<EOF\n$(rm -rf x)\nEOF", "rm -rf"),
        ("cat <<EOF\nit's\nEOF\nrm -rf x", "rm -rf"),
        ("cat <<-'E F'\n\tit's\n\tE F\nrm -rf x", "rm -rf"),
        ("A=1 B='2 3' rm -rf x", "rm -rf"),
        ("2>/dev/null rm -rf x", "rm -rf"),
        ("rm 2>&1 -rf x &>log", "rm -rf"),
        ("env A=1 rm -rf x", "rm -rf"),
        ("env -i -u HOME rm -rf x", "rm -rf"),
        ("env -S 'rm -rf' x", "rm -rf"),
        ("sudo -u root rm -rf x", "rm -rf"),
        ("sudo -n -- rm -rf x", "rm -rf"),
        ("ls | xargs -0 -n 1 rm -rf", "rm -rf"),
        ("nohup nice -n 5 rm -rf x", "rm -rf"),
        ("time -p rm -rf x", "rm -rf"),
        ("command rm -rf x", "rm -rf"),
        ("exec -a ls rm -rf x", "rm -rf"),
        ("timeout -k 1 5 rm -rf x", "rm -rf"),
        ("busybox rm -rf x", "rm -rf"),
        ("bash -c 'rm -rf x'", "rm -rf"),
        ("/bin/sh -ec 'ls; rm -rf x'", "rm -rf"),
        ("bash -o pipefail -c 'rm -rf x'", "rm -rf"),
        ("bash -euo pipefail -c 'rm -rf x'", "rm -rf"),
        ("bash -ceo pipefail 'rm -rf x'", "rm -rf"),
        ("sh -c \"bash -c 'rm -rf x'\"", "rm -rf"),
        ("su -c 'rm -rf x' user", "rm -rf"),
        ("su --command='rm -rf x'", "rm -rf"),
        ("eval 'rm -rf' x", "rm -rf"),
        (r"find . -name y -exec rm -rf {} \;", "rm -rf"),
        ("find . -exec ls {} + -ok rm -rf {} ';'", "rm -rf"),
        ("git push", "git push"),
        ("git -C x push origin", "git push"),
        ("dd --force=yes", "dd --force"),
        ("curl", "curl"),
    ],
)
def test_a_denied_command_is_found_however_it_is_written(command: str, entry: str) -> None:
    assert find_denied_entry(command, DENY) == entry


@pytest.mark.req("bash.deny.parsed")
@pytest.mark.parametrize(
    "command",
    [
        "",
        "# rm -rf x",
        "ls # curl",
        "rm x",
        "rm -r x",
        "rm -f x",
        "echo rm -rf x",
        "echo 'x; rm -rf x'",
        'echo "x && curl"',
        r"echo \; curl",
        "grep curl file",
        "sudo grep rm -rf file",
        "armor -rf",
        "git status",
        "command -v curl",
        "cat <<'EOF'\n$(rm -rf x)\ncurl\nEOF",
        "cat <<< 'curl'",
        "cat > curl",
        "cat < curl",
        "echo $((1 << 2)) ${#x} ${x//;/ curl} $#",
        "for ((i = 0; i < 3; i++)); do echo $i; done",
        "case $x in -h|--help) ls;; *) ls;; esac",
        "[ -f x ] && [[ -n y ]]",
        "$HOME/bin/tool x",
        "a=(1 2 3); exec 3>file",
        "find . -type f -delete",
        "A=curl",
    ],
)
def test_a_word_that_is_not_executed_is_not_denied(command: str) -> None:
    assert find_denied_entry(command, DENY) is None


@pytest.mark.req("bash.deny.unreadable")
@pytest.mark.parametrize(
    "command",
    [
        "echo 'x",
        'echo "x',
        "echo `x",
        "echo $(x",
        "echo ${x",
        "echo x\\",
        "((x",
        "cat <<EOF",
        "x=rm; $x -rf y",
        "$(echo rm) -rf y",
        "/bin/r? -rf y",
        "{rm,-rf,y}",
        "$(" * 100 + ")" * 100,
        "( " * 100 + ") " * 100,
        "r\\\nm -rf x",
        "((ls); (rm -rf x) )",
        '((echo "))"; rm -rf x; echo "") )',
        "eval " * 100 + "ls",
        "x" * (MAX_BYTES + 1),
    ],
)
def test_unreadable_lines_are_refused_if_there_is_a_deny_list(command: str) -> None:
    with pytest.raises(UnreadableCommandError):
        find_denied_entry(command, DENY)
    assert find_denied_entry(command, ()) is None


@pytest.mark.req("bash.deny.parsed")
def test_a_long_option_after_one_dash_is_a_word_of_its_own() -> None:
    assert find_denied_entry("find . -delete", ["find -delete"]) == "find -delete"
    assert find_denied_entry("find . -type d -empty -ls", ["find -delete"]) is None


@pytest.mark.req("bash.settings")
@pytest.mark.parametrize("text", ["", "  ", "curl | sh", "> x", "a; b", "$(x)", "'a'"])
def test_an_entry_that_could_never_match_is_invalid(text: str) -> None:
    assert not is_deny_entry(text)
    assert is_deny_entry("git push --force")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_quoted_words_round_trip(words: list[str]) -> None:
    """Words with control characters are refused instead."""
    try:
        (command,) = parse_commands(shlex.join(["x", *words]))
    except UnreadableCommandError:
        assert re.search(r"[\x00-\x08\x0b-\x1f\x7f]", "".join(words))
    else:
        assert [word.text for word in command.words] == words
        assert command.is_literal


ESCAPED = ["x", "x{", "u", "U", "c", "0", "e", ";", "\\", "'", "é"]
PIECES = [*(f"\\{one}" for one in ESCAPED), *'7dFé"{}?']


@pytest.mark.req("bash.deny.parsed")
@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
def test_backslash_escapes_are_decoded_as_in_bash(text: str) -> None:
    quoted = f"$'{text}'"
    try:
        ((word,),) = (command.words for command in parse_commands(f"x .{quoted}"))
    except UnreadableCommandError:  # a number that no character has
        assert "\\U" in text
        return
    script = f"printf %s .{quoted}".encode()
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    said = subprocess.run(["bash"], input=script, env=env, capture_output=True, check=True).stdout
    assert os.fsencode(word.text) == said


@given(st.text(st.sampled_from("rm -f$(){}`'\"\\;&|<>#\nEOFx=[]*")))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        find_denied_entry(text, DENY)
    except UnreadableCommandError as error:
        assert str(error)  # noqa: PT017 - that it raises nothing else is the point


@given(st.text(st.sampled_from("ab '\"\\;|&\n"), max_size=12))
def test_a_denied_command_after_anything_complete_is_found(text: str) -> None:
    try:
        parse_commands(text + "\n")
    except UnreadableCommandError:
        return
    with contextlib.suppress(UnreadableCommandError):
        assert find_denied_entry(f"{text}\ncurl x", ["curl"]) == "curl" or text.endswith("\\")
