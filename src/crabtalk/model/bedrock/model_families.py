"""Differences between the models on Bedrock: thinking, temperature, context windows."""

from typing import Any

from crabtalk.model.anthropic.generations import MIN_BUDGET, THINKING_BUDGET, parse_generation
from crabtalk.model.messages import Request

OPAQUE_KEY = "bedrock"  # our key in `opaque`

# Generations of Claude: the first that thinks on demand, the first that sets its own budget, the
# first that refuses a temperature, and the first that cannot be forced to call a tool.
THINKING_ON_DEMAND = (3, 7)
ADAPTIVE_THINKING = (4, 6)
NO_TEMPERATURE = (4, 7)
NO_FORCED_TOOLS = (5, 1)
# Thinking counts as output. Every model with a thinking budget allows this many tokens.
THINKING_LIMIT = 32_000


def is_claude(model: str) -> bool:
    """Recognizes all forms of names: us.anthropic.claude-…, arn:…/anthropic.claude-… and so on."""
    return "anthropic.claude" in model


def is_nova(model: str) -> bool:
    return "amazon.nova" in model


def parse_claude_generation(model: str) -> tuple[int, int]:
    """Return the generation of a Claude; (0, 0) for other models."""
    return parse_generation(model[model.index("claude") :]) if is_claude(model) else (0, 0)


def encode_thinking(request: Request) -> dict[str, Any]:
    """Return Claude's thinking options; empty for other models, which have no common ones."""
    generation = parse_claude_generation(request.model)
    if not request.thinking or generation < THINKING_ON_DEMAND:
        return {}
    if generation >= ADAPTIVE_THINKING:
        # By default the newer of these think but do not show it.
        return {"type": "adaptive", "display": "summarized"}
    budget = min(THINKING_BUDGET, (request.max_tokens or THINKING_LIMIT) // 2)
    return {"type": "enabled", "budget_tokens": budget} if budget >= MIN_BUDGET else {}


def takes_thoughts_back(model: str) -> bool:
    """Whether a model accepts its earlier thoughts in requests without thinking."""
    return not is_claude(model) or parse_claude_generation(model) >= ADAPTIVE_THINKING


def can_think(turns: list[dict[str, Any]]) -> bool:
    """False during a step whose calls were made without thinking: Claude 4.5 refuses it there."""
    if not turns or "toolResult" not in turns[-1]["content"][0]:
        return True
    return len(turns) > 1 and "reasoningContent" in turns[-2]["content"][0]


# In tokens, by a part of the model's name: Bedrock itself does not report them.
KNOWN_LIMITS = (
    ("anthropic.claude", 200_000),
    ("amazon.nova-micro", 128_000),
    ("amazon.nova-lite", 300_000),
    ("amazon.nova-pro", 300_000),
    ("amazon.nova-premier", 1_000_000),
    ("amazon.nova-2", 1_000_000),
    ("meta.llama3-1", 128_000),
    ("meta.llama3-2", 128_000),
    ("meta.llama3-3", 128_000),
    ("openai.gpt-oss", 128_000),
    ("deepseek.r1", 128_000),
    ("mistral.mistral-large", 128_000),
)


def find_context_limit(model: str) -> int | None:
    return next((limit for name, limit in KNOWN_LIMITS if name in model), None)
