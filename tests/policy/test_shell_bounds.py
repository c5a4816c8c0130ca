"""Parsing any shell line is limited in size and time."""

import contextlib
import random
import subprocess
import sys
import time

import pytest

from crabtalk.policy.shell.commands import UnreadableCommandError
from crabtalk.policy.shell.parser import parse_commands
from crabtalk.policy.shell.source import MAX_BYTES

# Repeated, each of these takes tree-sitter seconds, up to a minute for 64 KiB.
HARD = [
    "a|", ">a `", "a=(", "a=a=(", ">", "||", "&(", "\\\n&", "a|! ", "<<a\n", "${", "[[ a",
    "[[ a =~ ", "select ", "function export ", "(", "$(", "`", "\"$(", "{", "$((", "a;", "a ",
    "'", '"', "case a in ", "if a;then ", "export @(", "'a' ", "\"a\" ", "<<'E'\n", "$'", "1 ",
    "a[", "a\n", "eval ",
]  # fmt: skip


@pytest.mark.clock
@pytest.mark.req("shell.bounds")
@pytest.mark.parametrize("piece", HARD)
def test_64_kib_are_parsed_or_refused_within_50_ms(piece: str) -> None:
    parse_commands("ls")  # loads the parser
    text = piece * (MAX_BYTES // len(piece))
    started = time.perf_counter()
    with contextlib.suppress(UnreadableCommandError):
        parse_commands(text)
    assert time.perf_counter() - started < 0.05


@pytest.mark.clock
@pytest.mark.req("shell.bounds")
def test_mixtures_of_hard_pieces_are_parsed_or_refused_within_50_ms() -> None:
    parse_commands("ls")
    chooser = random.Random(1)
    for _ in range(60):
        pieces = chooser.choices(HARD, k=3)
        text = ("".join(pieces) * MAX_BYTES)[: chooser.choice([500, 1500, 4000, MAX_BYTES])]
        started = time.perf_counter()
        with contextlib.suppress(UnreadableCommandError):
            parse_commands(text)
        assert time.perf_counter() - started < 0.05, pieces


@pytest.mark.req("shell.bounds")
@pytest.mark.parametrize(
    "line",
    [
        "x" * (MAX_BYTES + 1),
        "é" * (MAX_BYTES // 2 + 1),
        "( " * 150 + "ls" + " )" * 150,
        "ls\x00",
        "ls\r\n",
        "ls \x1b[0m",
        "ls \ud800",
        "; ".join(["ls"] * 2000),
    ],
)
def test_oversized_or_binary_input_is_unreadable(line: str) -> None:
    with pytest.raises(UnreadableCommandError):
        parse_commands(line)


@pytest.mark.req("shell.bounds")
def test_a_long_file_in_a_here_document_is_still_read() -> None:
    code = "print('it is', \"long\"); x = [(1, 2)] | {3: $4} `5`\n" * 1000
    (command,) = parse_commands(f"cat > a.py <<'EOF'\n{code}EOF\n")
    assert command.redirects[-1].target.text == code
    (command,) = parse_commands("python3 -c '" + code.replace("'", "") + "'")
    assert command.words[1].text == code.replace("'", "")


@pytest.mark.req("shell.bounds")
def test_a_masked_text_that_bash_does_not_quote_hides_nothing() -> None:
    filler = "; ".join(["echo 'a|b|c|d|e'"] * 60)
    line = f"{filler}\necho \"<<'EOF'\"\nrm -rf x\nEOF\n"
    try:
        programs = {command.program for command in parse_commands(line)}
    except UnreadableCommandError:
        return
    assert "rm" in programs


@pytest.mark.req("shell.bounds")
def test_the_parser_is_loaded_with_the_first_line() -> None:
    code = (
        "import sys, crabtalk.hooks.bash, crabtalk.policy.shell.rules\n"
        "assert not [name for name in sys.modules if name.startswith('tree_sitter')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
