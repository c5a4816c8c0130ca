"""Examples on pages work: TOML files can be used, and commands in prose exist."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from crabtalk.cli.main import main as crabtalk
from crabtalk.daemon.cli import main as crabtalkd
from crabtalk.daemon.config.settings import SECTIONS, parse_config
from crabtalk.model.provider_settings import read_provider_settings
from crabtalk.storage.agent import find_unknown_keys, parse_agent
from crabtalk_cron.cli import main as crabtalk_cron
from crabtalk_search.cli import main as crabtalk_search
from crabtalk_telegram.cli import main as crabtalk_telegram
from crabtalk_web.cli import main as crabtalk_web
from crabtalk_wechat.cli import main as crabtalk_wechat
from tests.docs.book_pages import (
    FENCE,
    PageCodeBlock,
    find_blocks,
    get_page_name,
    list_pages,
    read_page,
)

TOML = [block for page in list_pages() for block in find_blocks(page, "toml")]
PROGRAMS: dict[str, click.Group] = {
    "crabtalk": crabtalk,
    "crabtalkd": crabtalkd,
    "crabtalk-cron": crabtalk_cron,
    "crabtalk-search": crabtalk_search,
    "crabtalk-web": crabtalk_web,
    "crabtalk-telegram": crabtalk_telegram,
    "crabtalk-wechat": crabtalk_wechat,
}
COMMAND = re.compile(
    r"(?:^|[`|($ ])(crabtalk(?:d|-[a-z]+)?)((?: [a-z]+)+)(?=$|[ `\n|)])", re.MULTILINE
)


@pytest.mark.req("book.words")
@pytest.mark.parametrize("block", TOML, ids=str)
def test_a_toml_file_on_a_page_can_be_used(block: PageCodeBlock) -> None:
    document = tomllib.loads(block.code)
    if "prompt" in document:
        assert parse_agent("shown", document).prompt
        assert find_unknown_keys(document) == []
    elif document.keys() <= SECTIONS:
        assert parse_config(document, Path("config.toml")).unknown_keys == ()
        read_provider_settings(document)


@pytest.mark.req("book.words")
def test_there_are_examples_of_agents_and_configurations() -> None:
    documents = [tomllib.loads(block.code) for block in TOML]
    assert sum("prompt" in document for document in documents) >= 4
    assert sum(document.keys() <= SECTIONS for document in documents) >= 2


def find_commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield the programs and subcommands that a page writes as code."""
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCE.sub("", text))
    lines = re.findall(r"^    (\S.*)$", text, re.MULTILINE)
    shown = [line for _, _, word, code in FENCE.findall(text) for line in code.splitlines() if word]
    for code in [*spans, *lines, *shown]:
        for program, words in COMMAND.findall(re.sub(r"\s#.*", "", code)):
            yield program, words.strip()


def command_exists(program: str, words: str) -> bool:
    """Whether the words begin with a command. Further words are its arguments."""
    command: click.Command | None = PROGRAMS.get(program)
    for word in words.split():
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
    return command is not None


@pytest.mark.req("book.words")
@pytest.mark.parametrize("page", list_pages(), ids=get_page_name)
def test_the_commands_that_a_page_names_exist(page: Path) -> None:
    assert [found for found in find_commands(read_page(page)) if not command_exists(*found)] == []


@pytest.mark.req("book.words")
def test_a_missing_command_is_noticed() -> None:
    text = "`crabtalk sing` or\n\n    crabtalkd dance\n\n```sh\necho x | crabtalk memory hum\n```\n"
    assert [command_exists(*found) for found in find_commands(text)] == [False, False, False]
    assert not command_exists("crabtalk-sing", "run")
