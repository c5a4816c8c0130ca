"""Settings: `config/tui.toml` in the home, what a person likes the chat to be. Never written here.

    agent = "crab"
    sender = ""
    compact_at = 100000            # tokens; the status line says /compact from there on
    currency = "$"
    [prices."claude-sonnet-5"]     # of a million tokens
    input = 3.0
    output = 15.0
    cached = 0.3

A file that cannot be used is one sentence, and the defaults.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from crabtalk.transport import default_home

from .prices import Price, Spending

MAX_FILE_SIZE = 1 << 20  # bytes that are read of it
DEFAULT_COMPACT_AT = 100_000  # tokens


class TerminalSettingsError(Exception):
    """A sentence about one thing in the file."""


class TerminalSettings(NamedTuple):
    agent: str = ""  # empty: crab, or the first there is
    sender: str = ""  # empty: the daemon's own name for a person
    compact_at: int = DEFAULT_COMPACT_AT  # 0: never mentioned
    currency: str = "$"
    prices: Mapping[str, Price] = MappingProxyType({})

    def create_spending(self) -> Spending:
        return Spending(self.prices, self.currency)


def read_settings(home: Path | None) -> tuple[TerminalSettings, str]:
    """What the file says, and a sentence if it cannot be used."""
    path = (home or default_home()) / "config" / "tui.toml"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_SIZE)
        import tomllib  # late: hardly anybody has such a file

        return parse_settings(tomllib.loads(data.decode())), ""
    except FileNotFoundError:
        return TerminalSettings(), ""
    except (OSError, ValueError, TerminalSettingsError) as error:
        reason = getattr(error, "strerror", None) or error
        return TerminalSettings(), f"{path} is not used: {reason}; mend it, or move it away"


def parse_settings(document: Mapping[str, Any]) -> TerminalSettings:
    """Raises SettingsError. Keys nobody knows are errors too: a slip would go unnoticed."""
    check_keys(document, "", {"agent", "sender", "compact_at", "currency", "prices"})
    prices = document.get("prices", {})
    if not isinstance(prices, Mapping):
        raise TerminalSettingsError('prices are tables, as in [prices."qwen3"]')
    return TerminalSettings(
        agent=parse_text(document, "agent"),
        sender=parse_text(document, "sender"),
        compact_at=parse_token_count(document.get("compact_at", DEFAULT_COMPACT_AT)),
        currency=parse_text(document, "currency", "$"),
        prices=MappingProxyType(
            {model: parse_price(model, table) for model, table in prices.items()}
        ),
    )


def check_keys(table: Mapping[str, Any], where: str, known: set[str]) -> None:
    for key in table:
        if key not in known:
            names = ", ".join(sorted(known))
            raise TerminalSettingsError(f"{where}{key!r} is no setting; there are {names}")


def parse_text(document: Mapping[str, Any], key: str, default: str = "") -> str:
    value = document.get(key, default)
    if not isinstance(value, str):
        raise TerminalSettingsError(f"{key} is a text, in quotes")
    return value


def parse_token_count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TerminalSettingsError("compact_at is a number of tokens; 0 for never")
    return value


def parse_price(model: str, table: Any) -> Price:
    if not isinstance(table, Mapping):
        raise TerminalSettingsError(f'the prices of {model!r} are a table: [prices."{model}"]')
    check_keys(table, f"{model}: ", {"input", "output", "cached"})
    for key in ("input", "output"):
        if key not in table:
            raise TerminalSettingsError(f"{model} has no price for {key}")
    cached = table.get("cached")
    return Price(
        input=parse_amount(model, table["input"]),
        output=parse_amount(model, table["output"]),
        cached=None if cached is None else parse_amount(model, cached),
    )


def parse_amount(model: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise TerminalSettingsError(f"the prices of {model!r} are numbers, of a million tokens")
    return float(value)
