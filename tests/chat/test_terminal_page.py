"""docs/terminal.md lists every key, every command and every setting."""

import re
import tomllib
from pathlib import Path

import pytest

from crabtalk.chat.app import ChatApp
from crabtalk.chat.command_table import COMMANDS
from crabtalk.chat.key_bindings import FORM_KEYS, KEYS, create_bindings
from crabtalk.chat.prices import Price
from crabtalk.chat.settings import TerminalSettings, parse_settings

PAGE = (Path(__file__).parents[2] / "docs" / "terminal.md").read_text(encoding="utf-8")


def read_table_rows(section: str) -> list[str]:
    """Return the rows of the table below a heading, without its header."""
    body = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [line for line in body.splitlines() if line.startswith("|")][2:]


@pytest.mark.req("chat.page")
def test_every_key_is_on_the_page() -> None:
    assert read_table_rows("Keys") == [f"| {key} | {what} |" for key, what in KEYS.items()]


@pytest.mark.req("chat.page")
def test_every_bound_ctrl_key_is_on_the_page(tmp_path: Path) -> None:
    named = {name for names in KEYS for name in names.split(", ")}
    bound = {binding.keys[0] for binding in create_bindings(ChatApp(tmp_path)).bindings} - {
        *FORM_KEYS
    }
    letters = [key[-1].upper() for key in bound if re.fullmatch("c-[a-z]", key)]
    assert {"C", "D", "Z"} < {*letters}
    # Terminals send these for Backspace, Tab and Enter.
    assert {f"Ctrl+{letter}" for letter in letters if letter not in "HIM"} <= named


@pytest.mark.req("chat.page")
def test_every_command_is_on_the_page() -> None:
    expected = [f"| `{command.usage}` | {command.about} |" for command in COMMANDS.values()]
    assert read_table_rows("Commands") == expected


@pytest.mark.req("chat.page")
def test_every_setting_is_on_the_page_with_its_default() -> None:
    block = PAGE.partition("```toml\n")[2].partition("```")[0]
    document = tomllib.loads(block)
    assert document.keys() == set(TerminalSettings._fields)
    (prices,) = document["prices"].values()
    assert prices.keys() == set(Price._fields)
    settings = parse_settings(document)
    assert settings.compact_at == TerminalSettings().compact_at
    assert settings.currency == TerminalSettings().currency
