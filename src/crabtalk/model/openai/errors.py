"""Converts errors of the many servers with this API to ApiError."""

from collections.abc import Mapping
from typing import Any

import msgspec

from crabtalk.model.errors import ApiError, ErrorKind, classify_status
from crabtalk.model.response_reading import describe_body, read_error_message, read_retry_after


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Parse {"error": {"message", "type", "code"}} and its many variations."""
    message, code = read_error_message(body)
    return ApiError(
        classify_error(status, code, message),
        message or describe_body(status, body),
        status=status,
        retry_after=read_retry_after(headers),
    )


def classify_error(status: int, code: str, message: str) -> ErrorKind:
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
    return classify_status(status)


def read_stream_error(document: dict[str, Any]) -> ApiError:
    """Parse an error inside a stream, whose HTTP status was 200."""
    message, code = read_error_message(msgspec.json.encode(document))
    number = int(code) if code.isdigit() and 400 <= int(code) < 600 else 500
    kind = classify_error(number, code, message)
    if "rate_limit" in code:
        kind = ErrorKind.RATE_LIMIT
    elif "overloaded" in code:
        kind = ErrorKind.OVERLOADED
    return ApiError(kind, message or "the model failed in mid-answer")
