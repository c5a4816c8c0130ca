"""docs/reference/files.md names every file in a home, while daemons run and afterwards."""

import asyncio
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.chat.terminal import ENTER, get_control_key, open_chat
from tests.docs.book_pages import find_blocks, read_page
from tests.docs.reader_sandbox import ReaderSandbox, open_sandbox

ROW_PATTERN = re.compile(
    r"^\| ((?:`[^`]+`(?:, )?)+) \| (yours|kept|derived|passing) \| (.+) \|$", re.MULTILINE
)
PATTERNS = [
    pattern
    for names, *_ in ROW_PATTERN.findall(read_page("docs/reference/files.md"))
    for pattern in re.findall(r"`([^`]+)`", names)
]
COMMANDS = """
crabtalk ask "My boat is called Heron"
crabtalk ask '!tool remember {"name": "boat", "content": "Heron"}'
crabtalk events subscribe rss:fetch crab
crabtalk search Heron
crabtalk conversations list
crabtalk compact crab
crabtalk-telegram pair
crabtalk agents fork crab owl
"""


def is_named(path: str) -> bool:
    return any(matches_pattern(path, pattern) for pattern in PATTERNS)


def matches_pattern(path: str, pattern: str) -> bool:
    if pattern.endswith("/**"):
        return path.startswith(pattern.removesuffix("**"))
    return path.count("/") == pattern.count("/") and fnmatchcase(path, pattern)


def list_files(home: Path) -> set[str]:
    return {
        path.relative_to(home).as_posix()
        for path in home.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


async def chat_once(home: Path) -> None:
    async with open_chat(home) as terminal:
        await terminal.wait_for_view("ready")
        terminal.type_keys(f"good morning{ENTER}")
        await terminal.wait_for_text("heard: good morning")
        await terminal.wait_for_view("ready")
        terminal.type_keys(get_control_key("D"))
        assert await terminal.wait_for_exit() == 0


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[ReaderSandbox]:
    with open_sandbox(tmp_path) as sandbox:
        config = sandbox.home / "config.toml"
        # Without TCP files is neither a port nor a token.
        config.write_text(config.read_text().replace('tcp = "off"', 'tcp = "127.0.0.1:0"'))
        yield sandbox


@pytest.mark.timeout(180)
@pytest.mark.req("book.files")
@pytest.mark.slow
def test_every_file_of_a_home_is_on_the_page(reader: ReaderSandbox) -> None:
    dice, *_ = find_blocks("docs/components.md", "python")
    component = reader.directory / "dice.py"
    component.write_text(dice.code)
    reader.run_shell(COMMANDS)
    asyncio.run(chat_once(reader.home))
    reader.serve_until([sys.executable, component], "is ready")
    reader.serve_until(["crabtalk-web", "up"], "No other device can open it")
    files = list_files(reader.home)
    assert {"run/crabtalk.sock", "run/token", "memory/crab.crmem", "logs/dice.log"} <= files
    assert {"run/telegram.pairing", "events/subscriptions.toml", "history"} <= files
    assert sorted(path for path in files if not is_named(path)) == []
    reader.run_shell("crabtalkd stop")
    afterwards = list_files(reader.home)
    assert sorted(path for path in afterwards if not is_named(path)) == []
    assert "index/conversations" in afterwards
    assert "run/crabtalk.sock" not in afterwards, "passing files are gone"


@pytest.mark.req("book.files")
@pytest.mark.parametrize(
    "path", ["surprise", "run/crabtalk.sock.old", "agents/a/b.toml", "sessions/x.txt", "index/odd"]
)
def test_a_file_that_is_not_on_the_page_is_noticed(path: str) -> None:
    assert not is_named(path)
