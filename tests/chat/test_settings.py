"""The settings in config/tui.toml, and the cost of turns."""

from pathlib import Path

import pytest

from crabtalk.chat.prices import Price, Spending
from crabtalk.chat.settings import DEFAULT_COMPACT_AT, TerminalSettings, read_settings
from crabtalk.protocol import wire

ALL = """
agent = "scout"
sender = "bo"
compact_at = 50000
currency = "€"
[prices."qwen/3"]
input = 1
output = 2.5
cached = 0.1
"""


def write_settings(home: Path, text: str | bytes) -> Path:
    path = home / "config" / "tui.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.req("chat.settings")
def test_without_a_file_the_defaults_are_used(home: Path) -> None:
    assert read_settings(home) == (TerminalSettings(), "")
    assert TerminalSettings().compact_at == DEFAULT_COMPACT_AT


@pytest.mark.req("chat.settings")
def test_every_key_is_read(home: Path) -> None:
    write_settings(home, ALL)
    settings, problem = read_settings(home)
    assert problem == ""
    assert settings == TerminalSettings("scout", "bo", 50000, "€", {"qwen/3": Price(1, 2.5, 0.1)})


@pytest.mark.req("chat.settings")
def test_without_an_explicit_home_the_default_home_is_used(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(home, 'agent = "owl"')
    monkeypatch.setenv("CRABTALK_HOME", str(home))
    assert read_settings(None)[0].agent == "owl"


@pytest.mark.req("chat.settings.broken")
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("agent = \n", "line 1"),
        ("agent = 3", "agent is a text"),
        ('colour = "red"', "'colour' is no setting; there are agent, compact_at"),
        ("compact_at = -1", "compact_at is a number of tokens"),
        ("compact_at = true", "compact_at is a number of tokens"),
        ("prices = 3", "prices are tables"),
        ('[prices]\n"m" = 3', '[prices."m"]'),
        ('[prices."m"]\ninput = 1', "m has no price for output"),
        ('[prices."m"]\ninput = 1\noutput = "x"', "are numbers"),
        ('[prices."m"]\ninput = -1\noutput = 1', "are numbers"),
        ('[prices."m"]\ninput = nan\noutput = 1', "are numbers"),
        ('[prices."m"]\ninput = 1\noutput = 1\nper = 1', "m: 'per' is no setting"),
        (b"\xff\xfe", "codec"),
    ],
)
def test_an_invalid_file_gives_one_error_and_the_defaults(
    home: Path, text: str | bytes, part: str
) -> None:
    path = write_settings(home, text)
    settings, problem = read_settings(home)
    assert settings == TerminalSettings()
    assert problem.startswith(f"{path} is not used: ")
    assert part in problem
    assert problem.endswith("; mend it, or move it away")
    assert "\n" not in problem


@pytest.mark.req("chat.settings.broken")
def test_a_directory_instead_of_the_file_gives_an_error(home: Path) -> None:
    (home / "config" / "tui.toml").mkdir(parents=True)
    assert "Is a directory" in read_settings(home)[1]


# ── Prices ─────────────────────────────────────────────────────────────────────────────────────


def make_end(model: str, read: int, prompt: int, cached: int = 0) -> wire.StreamEnd:
    usage = wire.TokenUsage(
        prompt_tokens=read, completion_tokens=prompt, cache_hit_tokens=cached or None
    )
    return wire.StreamEnd(model=model, usage=usage)


@pytest.mark.req("chat.prices")
def test_a_turn_costs_its_input_and_output_tokens() -> None:
    spending = Spending({"m": Price(3.0, 15.0)})
    spending.add_turn(make_end("m", 1_000_000, 100_000, cached=400_000))
    assert spending.last.cost == pytest.approx(4.5)
    spending.add_turn(make_end("m", 0, 100_000))
    assert spending.last.cost == pytest.approx(1.5)
    assert spending.total.cost == pytest.approx(6.0)
    assert (spending.total.turns, spending.total.input_tokens, spending.total.output_tokens) == (
        *(2, 1_000_000, 200_000),
    )


@pytest.mark.req("chat.prices")
def test_cached_tokens_have_their_own_price() -> None:
    price = Price(3.0, 15.0, cached=0.3)
    assert price.compute_cost(make_end("m", 1_000_000, 0, cached=1_000_000).usage) == pytest.approx(
        0.3
    )
    # Cached tokens beyond the input tokens are not counted.
    assert price.compute_cost(make_end("m", 1_000_000, 0, cached=2_000_000).usage) == pytest.approx(
        0.3
    )


@pytest.mark.req("chat.prices.unknown")
def test_a_total_with_an_unpriced_part_is_unknown() -> None:
    spending = Spending({"m": Price(1, 1)})
    spending.add_turn(make_end("m", 1_000_000, 0))
    spending.add_turn(make_end("other", 5, 5))
    assert spending.models["m"].cost == pytest.approx(1)
    assert spending.last.cost is None
    assert spending.total.cost is None
    assert spending.total.input_tokens == 1_000_005
    assert spending.format_cost(None) == ""


@pytest.mark.req("chat.prices")
def test_a_turns_cost_includes_its_tasks() -> None:
    spending = Spending({"m": Price(1.0, 1.0)})
    spending.add_delegated("m", make_end("m", 500_000, 0).usage)
    assert spending.total.cost == pytest.approx(0.5)
    spending.add_turn(make_end("m", 1_000_000, 0))
    assert spending.last.cost == pytest.approx(1.5)
    assert spending.last.turns == 1
    spending.add_turn(make_end("m", 1_000_000, 0))
    assert spending.last.cost == pytest.approx(1.0)
    assert spending.total.cost == pytest.approx(2.5)
    assert spending.total.turns == 2


@pytest.mark.req("chat.prices")
def test_a_turn_without_usage_is_not_counted() -> None:
    spending = Spending()
    spending.add_turn(wire.StreamEnd(model="m"))
    assert spending.total.turns == 0


@pytest.mark.req("chat.prices")
@pytest.mark.parametrize(
    ("cost", "shown"), [(0.0, "$0.00"), (0.0012, "$0.0012"), (1.5, "$1.50"), (1234.5, "$1234.50")]
)
def test_small_sums_are_shown_with_four_digits(cost: float, shown: str) -> None:
    assert Spending().format_cost(cost) == shown
