"""Differences between generations of Claude: thinking options, limits, context windows."""

import re
from typing import Any

from crabtalk.model.messages import Request

OPAQUE_KEY = "anthropic"  # our key in `opaque`

# From this generation on models set their own thinking budget, refuse a given budget or a
# temperature, and may think without being asked.
ADAPTIVE_THINKING = (4, 7)
# From this one on they also cannot be forced to call a tool, and thinking is only valid after
# exactly the history it was created with.
BOUND_THINKING = (5, 1)

# The API requires a limit in every request. Ours by generation, newest first: what every model of
# it allows; for newer ones half of that, since for some prompt and limit must fit the window.
MAX_TOKENS = (
    ((4, 6), 64_000),
    ((3, 7), 32_000),
    ((3, 5), 8_192),
    ((3, 0), 4_096),
    ((0, 0), 8_192),  # not a Claude
)
THINKING_BUDGET = 16_000
MIN_BUDGET = 1_024  # the API's own minimum
LONG_CONTEXT_GENERATION = (4, 6)  # a million tokens from here on, 200,000 before


THINKING_BLOCKS = frozenset({"thinking", "redacted_thinking"})


def parse_generation(model: str) -> tuple[int, int]:
    """Return (4, 5) for claude-sonnet-4-5-20250929, (3, 7) for claude-3-7-sonnet, and (0, 0) for
    other models."""
    name = model.rsplit("/", 1)[-1]
    match = re.match(r"claude-(?:[a-z]+-)?(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?", name)
    if match:
        return int(match[1]), int(match[2] or 0)
    return (
        ADAPTIVE_THINKING if name.startswith("claude-mythos") else (0, 0)
    )  # claude-mythos-preview


def compute_max_tokens(request: Request) -> int:
    generation = parse_generation(request.model)
    limit = request.max_tokens
    if limit is None:
        limit = next(tokens for since, tokens in MAX_TOKENS if generation >= since)
    if request.thinking and generation < ADAPTIVE_THINKING:
        # Thinking counts too, and the minimum of it must leave room for an answer.
        return max(limit, 2 * MIN_BUDGET)
    return limit


def encode_thinking(generation: tuple[int, int], limit: int) -> dict[str, Any]:
    if generation >= ADAPTIVE_THINKING:
        # By default these models think but do not show it.
        return {"thinking": {"type": "adaptive", "display": "summarized"}}
    return {"thinking": {"type": "enabled", "budget_tokens": min(THINKING_BUDGET, limit // 2)}}


def can_think(turns: list[dict[str, Any]]) -> bool:
    """False during a step whose calls were made without thinking.

    The API refuses thinking there. Another model made the calls, or thinking was off at the time.
    """
    for turn in reversed(turns):
        kinds = {block["type"] for block in turn["content"]}
        if kinds & THINKING_BLOCKS:
            return True
        if turn["role"] == "user" and "tool_result" not in kinds:
            return turn is turns[-1]
    return not turns


def find_context_limit(model: str) -> int | None:
    if not model.rsplit("/", 1)[-1].startswith("claude-"):
        return None
    return 1_000_000 if parse_generation(model) >= LONG_CONTEXT_GENERATION else 200_000
