"""The pages say what is so: the help the commands print, all of it, and what can be set."""

import tomllib

import click
import msgspec
import pytest

from apps.tui.help_pages import PAGES, ROOT, fresh, shown
from crabtalk.hooks.memory import Settings as MemorySettings
from crabtalk.hooks.sessions import Settings as SessionsSettings
from crabtalk.memory import page
from crabtalk_tui.cli import main

TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in PAGES}


def commands(command: click.Command, name: str) -> list[str]:
    below = command.commands.items() if isinstance(command, click.Group) else ()
    return [name, *(found for word, each in below for found in commands(each, f"{name} {word}"))]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.req("cli.help.pages")
def test_the_help_on_a_page_is_what_the_command_prints(name: str) -> None:
    assert fresh(TEXTS[name]) == TEXTS[name], "run python apps/tui/help_pages.py"


@pytest.mark.req("cli.help.pages")
def test_every_command_is_on_one_page() -> None:
    assert sorted(name for text in TEXTS.values() for name in shown(text)) == sorted(
        commands(main, "crabtalk")
    )


@pytest.mark.req("cli.help.pages")
def test_a_stale_page_is_noticed() -> None:
    for text in TEXTS.values():
        stale = text.replace("--help ", "--hilfe ")
        assert stale != text
        assert fresh(stale) == text


def test_a_command_that_is_gone_is_named() -> None:
    page = "<!-- help: crabtalk memory sing -->\n\n```text\n```\n"
    with pytest.raises(SystemExit, match="no command `crabtalk memory sing`"):
        fresh(page)


def block(language: str) -> str:
    """The block of docs/memory.md in that language."""
    return TEXTS["docs/memory.md"].partition(f"```{language}\n")[2].partition("```")[0]


@pytest.mark.req("cli.help.pages")
def test_the_settings_on_the_page_are_those_an_agent_has_by_default() -> None:
    hooks = tomllib.loads(block("toml"))["hooks"]
    assert hooks == {
        "memory": msgspec.to_builtins(MemorySettings()),
        "sessions": msgspec.to_builtins(SessionsSettings()),
    }


def test_the_page_of_an_entry_is_one_that_can_be_loaded() -> None:
    found = page.read(block("html"))
    assert found.created_at == 1776162225
    assert found.aliases == ("ship", "release")
    assert found.content == "Tag it, then …"
