"""Run every command of the README and the quick start in order, as a reader types it.

Of `make test`, which would run itself, only the target is checked.
"""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.book_pages import (
    FENCE,
    ROOT,
    find_blocks,
    get_page_name,
    list_pages,
    read_page,
    strip_code,
)
from tests.docs.reader_sandbox import PATIENCE, ReaderSandbox, open_sandbox

PAGES = ("README.md", "docs/quick-start.md")
# Commands that run until Ctrl+C, and a part of the line they print when they are ready.
SERVING_COMMANDS = {"crabtalk-web up": "/terminal/connect#key="}
PROGRAM_PATTERN = re.compile(
    r"^\$? *(?:\.venv/bin/)?(crabtalk[\w-]*|crabup|make|git|pip|uv|export) ", re.MULTILINE
)
MAKE_PATTERN = re.compile(r"(?:^|\| *)make(?: ([a-z-]+))?\b(?! of)")


def list_commands(page: str) -> list[str]:
    """Return the commands in the shell blocks of a page."""
    return [command for block in find_blocks(page, "sh") for command in split_commands(block.code)]


def split_commands(code: str) -> list[str]:
    """Return one command for each line, without comments."""
    return [bare for line in code.splitlines() if (bare := re.sub(r"\s+# .*", "", line).strip())]


def run_page(page: str, folder: Path) -> dict[str, str]:
    """Run each command of a page in a sandbox and return its output. All have to succeed. Python
    blocks between the commands are run too."""
    outputs = {}
    with open_sandbox(folder) as reader:
        for block in find_blocks(page, "sh", "python"):
            if block.language == "python":
                outputs[block.code] = reader.run_command([sys.executable, "-c", block.code])
                continue
            for command in split_commands(block.code):
                if not MAKE_PATTERN.search(command):
                    outputs[command] = run_command(reader, command)
    return outputs


def run_command(reader: ReaderSandbox, command: str) -> str:
    if command in SERVING_COMMANDS:
        return reader.serve_until(["sh", "-c", f"exec {command}"], SERVING_COMMANDS[command])
    return reader.run_shell(command)


@pytest.mark.timeout(180)
@pytest.mark.req("book.commands")
def test_the_commands_of_the_readme_do_what_they_say(tmp_path: Path) -> None:
    outputs = run_page("README.md", tmp_path)
    assert "heard: What do crabs dream of?" in outputs['crabtalk ask "What do crabs dream of?"']
    review = outputs['git diff | crabtalk ask "Review this" --json']
    events = [json.loads(line) for line in review.splitlines()]
    assert events[-1]["event"] == "end"
    assert "+high at seven" in "".join(event.get("content", "") for event in events)
    assert "doctor" in outputs["crabtalk --help"]
    assert "runs in" in outputs["crabtalkd status"]
    assert "stopped" in outputs["crabtalkd stop"]


@pytest.mark.timeout(180)
@pytest.mark.req("book.commands")
def test_the_commands_of_the_quick_start_do_what_they_say(tmp_path: Path) -> None:
    outputs = run_page("docs/quick-start.md", tmp_path)
    shown = outputs["crabtalk conversations show crab"]
    assert shown.index("My boat is called Heron") < shown.index("What is my boat called?")
    assert "tide tables" in outputs['echo "tide tables" | crabtalk ask "Make a title of this"']
    assert "owl" in outputs["crabtalk agents list"]
    assert "We spoke of Heron" in outputs["crabtalk compact crab"]
    assert "We spoke of Heron" in outputs["crabtalk archives crab"]
    assert "My boat is called Heron" in outputs["crabtalk search Heron"], "compacted or not"
    assert outputs["crabtalk-web up"].startswith("The page is at http://127.0.0.1:")
    assert "runs in" in outputs["crabtalkd status"]
    assert "stopped" in outputs["crabtalkd stop"]


@pytest.mark.req("book.commands")
@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_in_a_block_that_a_test_runs(page: str) -> None:
    """On these pages commands stand only in `sh` blocks, which the tests above run."""
    text = read_page(page)
    languages = {word.strip() for _, _, word, _ in FENCE.findall(text)}
    assert languages <= {"sh", "python"}
    indented = re.findall(r"^    .*$", strip_code(text), re.MULTILINE)
    assert [line for line in indented if PROGRAM_PATTERN.search(line.strip())] == []
    assert list_commands(page)


# ── make ────────────────────────────────────────────────────────────────────────────────────────


def list_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", read_page("Makefile"), re.MULTILINE))


@pytest.mark.req("book.commands")
def test_every_make_target_that_the_book_names_exists() -> None:
    named = set()
    for page in list_pages():
        text = read_page(page)
        spans = [
            *re.findall(r"`([^`\n]*\bmake [^`\n]*)`", text),
            *list_commands(get_page_name(page)),
        ]
        named |= {target for span in spans for target in MAKE_PATTERN.findall(span) if target}
    assert {"run", "test", "bench", "help", "test-slow"} <= named
    assert named <= list_targets()


@pytest.mark.req("book.commands")
def test_make_run_opens_the_chat_once_a_model_is_there() -> None:
    shown = subprocess.run(
        ["make", "-n", "-o", ".venv/.compiled", "run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("M")},
    )
    assert shown.stdout.splitlines() == [
        ".venv/bin/crabtalkd model install --if-needed",
        "exec .venv/bin/crabtalk",
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.req("book.commands")
def test_make_run_sets_up_and_talks_with_a_terminal_and_without(tmp_path: Path) -> None:
    assert 'echo "Say hello" | make run' in read_page("README.md")
    with open_sandbox(tmp_path) as reader:
        answered = subprocess.run(
            ["sh", "-c", 'echo "Say hello" | make run'],
            cwd=ROOT,
            env=reader.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        assert answered.returncode == 0, answered.stderr
        assert "heard: Say hello" in answered.stdout
        assert "heard: What is the tide?" in run_at_terminal(reader, "What is the tide?")


def run_at_terminal(reader: ReaderSandbox, words: str) -> str:
    """Return what `make run` shows: type the message, wait for the answer, and leave."""
    master, slave = pty.openpty()
    env = {**reader.environment, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    screen = ""
    with subprocess.Popen(
        ["make", "run"],
        cwd=ROOT,
        env=env,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as process:
        os.close(slave)
        for when, keys in (("crab", f"{words}\r"), (f"heard: {words}", "\x04")):
            while when not in screen:
                screen += os.read(master, 65536).decode(errors="replace")
            os.write(master, keys.encode())
        try:
            while piece := os.read(master, 65536):
                screen += piece.decode(errors="replace")
        except OSError:  # a terminal raises this when its last program has ended
            pass
        assert process.wait(PATIENCE) == 0
    os.close(master)
    return screen
