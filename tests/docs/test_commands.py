"""Every command that the README and the quick start show, as a reader types it, in their order.

`make test` would run itself, and is here by its target alone.
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
# What serves until Ctrl+C, and what it says once it does.
SERVING_COMMANDS = {"crabtalk-web up": "/terminal/connect#key="}
PROGRAM_PATTERN = re.compile(
    r"^\$? *(?:\.venv/bin/)?(crabtalk[\w-]*|crabup|make|git|pip|uv|export) ", re.MULTILINE
)
MAKE_PATTERN = re.compile(r"(?:^|\| *)make(?: ([a-z-]+))?\b(?! of)")


def list_commands(page: str) -> list[str]:
    """Those of its shell blocks."""
    return [command for block in find_blocks(page, "sh") for command in split_commands(block.code)]


def split_commands(code: str) -> list[str]:
    """A line each, without remarks."""
    return [bare for line in code.splitlines() if (bare := re.sub(r"\s+# .*", "", line).strip())]


def run_page(page: str, folder: Path) -> dict[str, str]:
    """What came of each command of a page, in a place of its own, all having succeeded. Programs
    in Python that stand between them are run there, too."""
    said = {}
    with open_sandbox(folder) as reader:
        for block in find_blocks(page, "sh", "python"):
            if block.language == "python":
                said[block.code] = reader.run_command([sys.executable, "-c", block.code])
                continue
            for command in split_commands(block.code):
                if not MAKE_PATTERN.search(command):
                    said[command] = run_command(reader, command)
    return said


def run_command(reader: ReaderSandbox, command: str) -> str:
    if command in SERVING_COMMANDS:
        return reader.serve_until(["sh", "-c", f"exec {command}"], SERVING_COMMANDS[command])
    return reader.run_shell(command)


@pytest.mark.timeout(180)
@pytest.mark.req("book.commands")
def test_the_commands_of_the_readme_do_what_they_say(tmp_path: Path) -> None:
    said = run_page("README.md", tmp_path)
    assert "heard: What do crabs dream of?" in said['crabtalk ask "What do crabs dream of?"']
    review = said['git diff | crabtalk ask "Review this" --json']
    events = [json.loads(line) for line in review.splitlines()]
    assert events[-1]["event"] == "end"
    assert "+high at seven" in "".join(event.get("content", "") for event in events)
    assert "doctor" in said["crabtalk --help"]
    assert "runs in" in said["crabtalkd status"]
    assert "stopped" in said["crabtalkd stop"]


@pytest.mark.timeout(180)
@pytest.mark.req("book.commands")
def test_the_commands_of_the_quick_start_do_what_they_say(tmp_path: Path) -> None:
    said = run_page("docs/quick-start.md", tmp_path)
    shown = said["crabtalk conversations show crab"]
    assert shown.index("My boat is called Heron") < shown.index("What is my boat called?")
    assert "tide tables" in said['echo "tide tables" | crabtalk ask "Make a title of this"']
    assert "owl" in said["crabtalk agents list"]
    assert "We spoke of Heron" in said["crabtalk compact crab"]
    assert "We spoke of Heron" in said["crabtalk archives crab"]
    assert "My boat is called Heron" in said["crabtalk search Heron"], "compacted or not"
    assert said["crabtalk-web up"].startswith("The page is at http://127.0.0.1:")
    assert "runs in" in said["crabtalkd status"]
    assert "stopped" in said["crabtalkd stop"]


@pytest.mark.req("book.commands")
@pytest.mark.parametrize("page", PAGES)
def test_no_command_stands_where_nobody_runs_it(page: str) -> None:
    """Those with a page of their own, and in prose, are elsewhere; here a block of them is `sh`."""
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
def test_every_target_of_make_that_the_book_names_is_there() -> None:
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
    """What `make run` shows to somebody who says this, waits for the answer, and leaves."""
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
        except OSError:  # how a terminal says that the last program at it has ended
            pass
        assert process.wait(PATIENCE) == 0
    os.close(master)
    return screen
