"""The pages match the commands: all help texts, and the settings on docs/memory.md."""

import tomllib
from pathlib import Path

import msgspec
import pytest

from apps.help_page import ROOT
from crabtalk.hooks.memory import MemorySettings as MemorySettings
from crabtalk.hooks.sessions import SessionsSettings as SessionsSettings
from crabtalk.memory import markdown_page
from docs.command_help import PAGES, SCRIPT, refresh_page, render_pages

STALE = f"run python -m {SCRIPT}"


@pytest.mark.parametrize("path", render_pages(), ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.req("cli.help.pages")
def test_a_page_shows_the_current_help(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == render_pages()[path], STALE


@pytest.mark.req("cli.help.pages")
def test_every_command_is_on_one_page() -> None:
    shown = [name for page in PAGES for name in page.list_shown_commands(page.read_page())]
    assert sorted(shown) == sorted(PAGES[0].list_commands())


@pytest.mark.req("cli.help.pages")
def test_a_stale_page_is_noticed() -> None:
    for each in PAGES:
        stale = each.read_page().replace("--help ", "--hilfe ")
        assert stale != each.read_page()
        assert refresh_page(each, stale) == each.read_page()


def test_a_missing_command_is_named() -> None:
    page = "<!-- help: crabtalk memory sing -->\n\n```text\n```\n"
    with pytest.raises(SystemExit, match="no command `crabtalk memory sing`"):
        refresh_page(PAGES[0], page)


def find_code_block(language: str) -> str:
    """Return the first block of docs/memory.md in this language."""
    return PAGES[0].read_page().partition(f"```{language}\n")[2].partition("```")[0]


@pytest.mark.req("cli.help.pages")
def test_the_settings_on_the_page_are_the_defaults_of_an_agent() -> None:
    hooks = tomllib.loads(find_code_block("toml"))["hooks"]
    assert hooks == {
        "memory": msgspec.to_builtins(MemorySettings()),
        "sessions": msgspec.to_builtins(SessionsSettings()),
    }


def test_the_entry_page_on_the_page_can_be_loaded() -> None:
    found = markdown_page.parse_page(find_code_block("html"))
    assert found.created_at == 1776162225
    assert found.aliases == ("ship", "release")
    assert found.content == "Tag it, then …"
