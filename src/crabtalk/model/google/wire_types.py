"""The types of Gemini's JSON, limited to the fields that are read here."""

from typing import Any

import msgspec


class GoogleStruct(msgspec.Struct, rename="camel"):
    """Camel case in JSON; any field may be missing or null."""


class GoogleFunctionCall(GoogleStruct):
    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None


class GooglePart(GoogleStruct):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: GoogleFunctionCall | None = None


class GoogleContent(GoogleStruct):
    parts: list[GooglePart] | None = None


class GoogleCandidate(GoogleStruct):
    content: GoogleContent | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class GooglePromptFeedback(GoogleStruct):
    block_reason: str | None = None
    block_reason_message: str | None = None


class GoogleUsageMetadata(GoogleStruct):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    total_token_count: int | None = None
    cached_content_token_count: int | None = None


class GoogleEvent(GoogleStruct):
    candidates: list[GoogleCandidate] | None = None
    prompt_feedback: GooglePromptFeedback | None = None
    usage_metadata: GoogleUsageMetadata | None = None
    response_id: str | None = None
    error: Any = None
