"""Random lines against real bash: what it runs is never judged "not denied"."""

import contextlib
import shlex
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crabtalk.policy.shell.commands import UnreadableCommandError
from crabtalk.policy.shell.rules import find_denied_entry

WRAPPERS = [
    "{}",
    "env A=1 {}",
    "nice -n 1 {}",
    "timeout --sig KILL 9 {}",
    "stdbuf -o0 {}",
    "command {}",
    "setsid -w {}",
    "echo a | xargs -I% {}",
    "find . -maxdepth 0 -exec {} \\;",
]
STATEMENTS = [
    "{}",
    "true; {}",
    "true && {}",
    "false || {}",
    "true | {}",
    "( {} )",
    "{{ {}; }}",
    "! {}",
    "echo $({})",
    'echo "a $({}) b"',
    "cat <({})",
    "if {}; then :; fi",
    "for i in 1; do {}; done",
    "case a in *) {};; esac",
    "f() {{ {}; }}; f",
    "A=$({})",
    "echo $((1 + $({} 2>/dev/null)))",
    "cat <<E\n$({})\nE\n",
    "cat <<'E'\n$(\nE\n{}",
    "# it's\n{}",
    "echo 'it'\\''s'; {}",
    "{} > /dev/null",
    "2>/dev/null {}",
]
QUOTES = [
    lambda line: f"bash -c {shlex.quote(line)}",
    lambda line: f"sh -ec {shlex.quote(line)}",
    lambda line: f"eval {shlex.quote(line)}",
    lambda line: f"bash <<< {shlex.quote(line)}",
    lambda line: f"trap {shlex.quote(line)} EXIT",
    lambda line: f"bash <<'EOS'\n{line}\nEOS\n",
    lambda line: f"printf %s {shlex.quote(line)} | sh",
]
PROGRAMS = ["denied", "'denied'", "d\\enied", "$'\\x64enied'", 'de"nie"d', "${a:-denied}"]


@st.composite
def nested_lines(draw: st.DrawFn) -> str:
    line = draw(st.sampled_from(PROGRAMS))
    line = draw(st.sampled_from(WRAPPERS)).format(line)
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            line = draw(st.sampled_from(STATEMENTS)).format(line)
        else:
            line = draw(st.sampled_from(QUOTES))(line)
    return line


PIECES = [
    "denied", " ", " ", "\n", ";", "&&", "|", "(", ")", "{ ", "}", "$(", "`", "'", '"', "\\", "#",
    "a=", "$a", "<<E", "\nE\n", "<<<", "[[ ", " ]]", "((", "))", "${a:-", "if ", "then ",
    "fi", "! ",
    "case a in a)", ";;", "esac", "do ", "done", "for i in a;", "f()", "eval ",
    "env ", "-", "é", "[",
]  # fmt: skip


def runs_denied(line: str) -> bool:
    """Whether bash runs the program `denied`, a stub, in an empty directory."""
    with TemporaryDirectory() as name:
        work = Path(name)
        stub = work / "bin" / "denied"
        stub.parent.mkdir()
        stub.write_text(f"#!/bin/sh\n: > {name}/marker\n")
        stub.chmod(0o755)
        (work / "empty").mkdir()
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["bash", "-c", line],
                cwd=work / "empty",
                env={"PATH": f"{stub.parent}:/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=5,
                check=False,
            )
        return (work / "marker").exists()


def is_refused(line: str) -> bool:
    try:
        return find_denied_entry(line, ["denied"]) is not None
    except UnreadableCommandError:
        return True


@pytest.mark.req("shell.evasions")
@settings(deadline=None)
@given(nested_lines())
def test_a_nested_denied_command_is_refused_whenever_bash_runs_it(line: str) -> None:
    assert is_refused(line) or not runs_denied(line)


@pytest.mark.req("shell.evasions")
@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_any_mixture_of_tokens_is_refused_whenever_bash_runs_it(text: str) -> None:
    assert is_refused(text) or not runs_denied(text)
