"""What errors mean, in the words of the many servers that speak this dialect."""

from collections.abc import Mapping
from typing import Any

import msgspec

from crabtalk.model.errors import ApiError, ErrorKind, kind_of_status
from crabtalk.model.reading import error_words, http_phrase, read_retry_after


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """An error of this dialect: {"error": {"message", "type", "code"}}, in many variations."""
    message, code = error_words(body)
    return ApiError(
        error_kind(status, code, message),
        message or http_phrase(status, body),
        status=status,
        retry_after=read_retry_after(headers),
    )


def error_kind(status: int, code: str, message: str) -> ErrorKind:
    lowered = f"{code} {message}".lower()
    if "insufficient_quota" in lowered or "insufficient balance" in lowered:
        return ErrorKind.QUOTA
    if (
        "context_length" in lowered
        or "context length" in lowered
        or "exceed_context_size" in lowered
        or "maximum context" in lowered
    ):
        return ErrorKind.CONTEXT
    if "content_filter" in lowered or "content_policy" in lowered:
        return ErrorKind.FILTERED
    if "model_not_found" in lowered:
        return ErrorKind.NOT_FOUND
    return kind_of_status(status)


def stream_error(document: dict[str, Any]) -> ApiError:
    """An error in mid-stream, where the status was already 200."""
    message, code = error_words(msgspec.json.encode(document))
    number = int(code) if code.isdigit() and 400 <= int(code) < 600 else 500
    kind = error_kind(number, code, message)
    if "rate_limit" in code:
        kind = ErrorKind.RATE_LIMIT
    elif "overloaded" in code:
        kind = ErrorKind.OVERLOADED
    return ApiError(kind, message or "the model failed in mid-answer")
