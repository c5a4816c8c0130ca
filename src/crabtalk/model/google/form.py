"""What the wire holds, as far as anybody here reads it."""

from typing import Any

import msgspec


class Wire(msgspec.Struct, rename="camel"):
    """Camel case outside; anything may be left out or null."""


class FunctionCall(Wire):
    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None


class Part(Wire):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None


class Content(Wire):
    parts: list[Part] | None = None


class Candidate(Wire):
    content: Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class PromptFeedback(Wire):
    block_reason: str | None = None
    block_reason_message: str | None = None


class UsageMetadata(Wire):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    total_token_count: int | None = None
    cached_content_token_count: int | None = None


class Event(Wire):
    candidates: list[Candidate] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: UsageMetadata | None = None
    response_id: str | None = None
    error: Any = None
