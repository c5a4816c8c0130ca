"""Count tokens, and compute costs for models whose prices are in the person's settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from crabtalk.protocol import wire

MILLION = 1_000_000


class Price(NamedTuple):
    """Prices of a million tokens.

    `cached` is for tokens read from the provider's cache; None: they cost as much as others.
    """

    input: float
    output: float
    cached: float | None = None

    def compute_cost(self, usage: wire.TokenUsage) -> float:
        cached = min(usage.cache_hit_tokens, usage.prompt_tokens) if self.cached is not None else 0
        cost = (
            (usage.prompt_tokens - cached) * self.input
            + cached * (self.cached or 0.0)
            + usage.completion_tokens * self.output
        )
        return cost / MILLION


@dataclass(slots=True)
class TokenCount:
    """A number of tokens and their cost."""

    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = 0.0  # None: some of it has no price

    def add(self, usage: wire.TokenUsage, cost: float | None) -> None:
        self.input_tokens += usage.prompt_tokens
        self.output_tokens += usage.completion_tokens
        self.cost = None if cost is None or self.cost is None else self.cost + cost


@dataclass(slots=True)
class Spending:
    """Tokens and costs of this chat by turn and model. The daemon does not report compactions."""

    prices: Mapping[str, Price] = field(default_factory=dict)
    currency: str = "$"
    last: TokenCount = field(default_factory=TokenCount)
    total: TokenCount = field(default_factory=TokenCount)
    models: dict[str, TokenCount] = field(default_factory=dict)
    _task_count: TokenCount = field(default_factory=TokenCount)  # tasks of the running turn

    def add_turn(self, end: wire.StreamEnd) -> None:
        """Count a turn that has ended, with what its tasks spent."""
        self.last, self._task_count = self._task_count, TokenCount()
        if not end.HasField("usage"):
            return
        for count in (self.last, self.total, self._get_model_count(end.model)):
            count.turns += 1
        self._add_usage(end.model, end.usage, self.last)

    def add_delegated(self, model: str, usage: wire.TokenUsage) -> None:
        """Count a delegated task that has ended; a background task counts with the next turn."""
        self._add_usage(model, usage, self._task_count)

    def _add_usage(self, model: str, usage: wire.TokenUsage, part: TokenCount) -> None:
        price = self.prices.get(model)
        cost = price.compute_cost(usage) if price is not None else None
        for count in (part, self.total, self._get_model_count(model)):
            count.add(usage, cost)

    def _get_model_count(self, model: str) -> TokenCount:
        return self.models.setdefault(model, TokenCount())

    def format_cost(self, cost: float | None) -> str:
        """Format money with two digits, or four for sums below one."""
        if cost is None:
            return ""
        digits = 2 if cost >= 1 or cost == 0 else 4
        return f"{self.currency}{cost:.{digits}f}"
