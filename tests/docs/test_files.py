"""docs/reference/files.md names every file that there is in a home, while it is used and after."""

import asyncio
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from apps.tui.tests.chat.terminal import ENTER, chatting, ctrl
from tests.docs.pages import blocks, text_of
from tests.docs.place import Place, place

ROW = re.compile(
    r"^\| ((?:`[^`]+`(?:, )?)+) \| (yours|kept|derived|passing) \| (.+) \|$", re.MULTILINE
)
PATTERNS = [
    pattern
    for names, *_ in ROW.findall(text_of("docs/reference/files.md"))
    for pattern in re.findall(r"`([^`]+)`", names)
]
USED = """
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
    return any(matches(path, pattern) for pattern in PATTERNS)


def matches(path: str, pattern: str) -> bool:
    if pattern.endswith("/**"):
        return path.startswith(pattern.removesuffix("**"))
    return path.count("/") == pattern.count("/") and fnmatchcase(path, pattern)


def files(home: Path) -> set[str]:
    return {
        path.relative_to(home).as_posix()
        for path in home.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


async def chatted(home: Path) -> None:
    async with chatting(home) as terminal:
        await terminal.until_view("ready")
        terminal.type(f"good morning{ENTER}")
        await terminal.until("heard: good morning")
        await terminal.until_view("ready")
        terminal.type(ctrl("D"))
        assert await terminal.left() == 0


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        config = made.home / "config.toml"
        # Where TCP is off there is neither a port nor a token.
        config.write_text(config.read_text().replace('tcp = "off"', 'tcp = "127.0.0.1:0"'))
        yield made


@pytest.mark.timeout(180)
@pytest.mark.req("book.files")
@pytest.mark.slow
def test_every_file_of_a_home_is_on_the_page(reader: Place) -> None:
    dice, *_ = blocks("docs/components.md", "python")
    component = reader.directory / "dice.py"
    component.write_text(dice.code)
    reader.shell(USED)
    asyncio.run(chatted(reader.home))
    reader.served([sys.executable, component], "is ready")
    reader.served(["crabtalk-web", "up"], "No other device can open it")
    there = files(reader.home)
    assert {"run/crabtalk.sock", "run/token", "memory/crab.crmem", "logs/dice.log"} <= there
    assert {"run/telegram.pairing", "events/subscriptions.toml", "history"} <= there
    assert sorted(path for path in there if not is_named(path)) == []
    reader.shell("crabtalkd stop")
    afterwards = files(reader.home)
    assert sorted(path for path in afterwards if not is_named(path)) == []
    assert "index/conversations" in afterwards
    assert "run/crabtalk.sock" not in afterwards, "what passes has passed"


@pytest.mark.req("book.files")
@pytest.mark.parametrize(
    "path", ["surprise", "run/crabtalk.sock.old", "agents/a/b.toml", "sessions/x.txt", "index/odd"]
)
def test_a_file_that_is_not_on_the_page_is_noticed(path: str) -> None:
    assert not is_named(path)
