"""Models differ by generation in how thinking is asked for, and in what they allow."""

import re
from typing import Any

from crabtalk.model.messages import Request

OPAQUE_KEY = "anthropic"  # our key in `opaque`

# From this generation on a model sets its own thinking budget, refuses one that is set for it,
# refuses a temperature, and may think without being asked.
ADAPTIVE_THINKING = (4, 7)
# From this one on it also cannot be made to call a tool, and its thinking is valid only after the
# very history it was thought in.
BOUND_THINKING = (5, 1)

# The API wants a limit in every request. Ours by generation, newest first: what every model of it
# allows, and of the newer ones half, since some want prompt and limit to fit the window together.
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
    """(4, 5) of claude-sonnet-4-5-20250929, (3, 7) of claude-3-7-sonnet, (0, 0) of a stranger."""
    name = model.rsplit("/", 1)[-1]
    found = re.match(r"claude-(?:[a-z]+-)?(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?", name)
    if found:
        return int(found[1]), int(found[2] or 0)
    return (
        ADAPTIVE_THINKING if name.startswith("claude-mythos") else (0, 0)
    )  # claude-mythos-preview


def compute_max_tokens(request: Request) -> int:
    born = parse_generation(request.model)
    limit = request.max_tokens
    if limit is None:
        limit = next(tokens for since, tokens in MAX_TOKENS if born >= since)
    if request.thinking and born < ADAPTIVE_THINKING:
        # Thinking counts too, and even the least of it must leave room for an answer.
        return max(limit, 2 * MIN_BUDGET)
    return limit


def encode_thinking(born: tuple[int, int], limit: int) -> dict[str, Any]:
    if born >= ADAPTIVE_THINKING:
        # Left alone, these models think but do not show it.
        return {"thinking": {"type": "adaptive", "display": "summarized"}}
    return {"thinking": {"type": "enabled", "budget_tokens": min(THINKING_BUDGET, limit // 2)}}


def can_think(turns: list[dict[str, Any]]) -> bool:
    """False when calls are under way that were made without thinking.

    The API refuses thinking there: another model made them, or thinking was off at the time.
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
