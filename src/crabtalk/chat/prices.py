"""Prices: what turns cost, for models whose prices the person gave. Tokens are counted anyway."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from crabtalk.protocol import wire

MILLION = 1_000_000


class Price(NamedTuple):
    """Of a million tokens. `cached` of those read from the provider's cache; None: as others."""

    input: float
    output: float
    cached: float | None = None

    def compute_cost(self, usage: wire.TokenUsage) -> float:
        cheap = min(usage.cache_hit_tokens, usage.prompt_tokens) if self.cached is not None else 0
        paid = (
            (usage.prompt_tokens - cheap) * self.input
            + cheap * (self.cached or 0.0)
            + usage.completion_tokens * self.output
        )
        return paid / MILLION


@dataclass(slots=True)
class TokenCount:
    """Tokens, and what is known of their cost."""

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
    """Of this chat, turn by turn and model by model. What compactions spend nobody tells."""

    prices: Mapping[str, Price] = field(default_factory=dict)
    currency: str = "$"
    last: TokenCount = field(default_factory=TokenCount)
    total: TokenCount = field(default_factory=TokenCount)
    models: dict[str, TokenCount] = field(default_factory=dict)
    _task_count: TokenCount = field(default_factory=TokenCount)  # of the turn that runs

    def add_turn(self, end: wire.StreamEnd) -> None:
        """A turn is over. What its tasks spent meanwhile is part of it."""
        self.last, self._task_count = self._task_count, TokenCount()
        if not end.HasField("usage"):
            return
        for count in (self.last, self.total, self._get_model_count(end.model)):
            count.turns += 1
        self._add_usage(end.model, end.usage, self.last)

    def add_delegated(self, model: str, usage: wire.TokenUsage) -> None:
        """A task that a turn set off is over; one in the background counts with the next turn."""
        self._add_usage(model, usage, self._task_count)

    def _add_usage(self, model: str, usage: wire.TokenUsage, part: TokenCount) -> None:
        price = self.prices.get(model)
        cost = price.compute_cost(usage) if price is not None else None
        for count in (part, self.total, self._get_model_count(model)):
            count.add(usage, cost)

    def _get_model_count(self, model: str) -> TokenCount:
        return self.models.setdefault(model, TokenCount())

    def format_cost(self, cost: float | None) -> str:
        """Money as people write it; small sums with what makes them differ from nothing."""
        if cost is None:
            return ""
        digits = 2 if cost >= 1 or cost == 0 else 4
        return f"{self.currency}{cost:.{digits}f}"
