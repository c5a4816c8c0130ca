"""The chat's settings: `config/tui.toml` in the home. Only people write it.

    agent = "crab"
    sender = ""
    compact_at = 100000            # tokens from which the status line suggests /compact
    currency = "$"
    [prices."claude-sonnet-5"]     # of a million tokens
    input = 3.0
    output = 15.0
    cached = 0.3

For an invalid file the defaults are used, and one sentence is shown.
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
    """An invalid setting, described in one sentence."""


class TerminalSettings(NamedTuple):
    agent: str = ""  # empty: crab, or the first agent
    sender: str = ""  # empty: the daemon's default
    compact_at: int = DEFAULT_COMPACT_AT  # 0: /compact is never suggested
    currency: str = "$"
    prices: Mapping[str, Price] = MappingProxyType({})

    def create_spending(self) -> Spending:
        return Spending(self.prices, self.currency)


def read_settings(home: Path | None) -> tuple[TerminalSettings, str]:
    """Read the settings. The second value is a sentence if the file cannot be used, else empty."""
    path = (home or default_home()) / "config" / "tui.toml"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_SIZE)
        import tomllib  # late: few people have such a file

        return parse_settings(tomllib.loads(data.decode())), ""
    except FileNotFoundError:
        return TerminalSettings(), ""
    except (OSError, ValueError, TerminalSettingsError) as error:
        reason = getattr(error, "strerror", None) or error
        return TerminalSettings(), f"{path} is not used: {reason}; mend it, or move it away"


def parse_settings(document: Mapping[str, Any]) -> TerminalSettings:
    """Raises TerminalSettingsError, also for unknown keys, so that a typo is noticed."""
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


def check_keys(table: Mapping[str, Any], prefix: str, known_keys: set[str]) -> None:
    for key in table:
        if key not in known_keys:
            names = ", ".join(sorted(known_keys))
            raise TerminalSettingsError(f"{prefix}{key!r} is no setting; there are {names}")


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
