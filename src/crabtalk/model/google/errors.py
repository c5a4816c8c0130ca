"""Converts Gemini's errors to ApiError, wherever in an answer they are."""

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

from crabtalk.model.errors import ApiError, ErrorKind, classify_status
from crabtalk.model.response_reading import describe_body, read_retry_after

from .wire_types import GooglePromptFeedback

STATUS_NAME_KINDS = {
    "INVALID_ARGUMENT": ErrorKind.INVALID,
    "FAILED_PRECONDITION": ErrorKind.INVALID,
    "UNAUTHENTICATED": ErrorKind.AUTH,
    "PERMISSION_DENIED": ErrorKind.AUTH,
    "NOT_FOUND": ErrorKind.NOT_FOUND,
    "RESOURCE_EXHAUSTED": ErrorKind.RATE_LIMIT,
    "UNAVAILABLE": ErrorKind.OVERLOADED,
    "INTERNAL": ErrorKind.SERVER,
    "DEADLINE_EXCEEDED": ErrorKind.TIMEOUT,
}

TOO_LONG_PHRASES = ("token count", "maximum number of tokens", "payload size exceeds")


def build_blocked_error(feedback: GooglePromptFeedback) -> ApiError:
    return ApiError(
        ErrorKind.FILTERED,
        feedback.block_reason_message or f"the prompt was blocked ({feedback.block_reason})",
    )


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Parse {"error": {"code", "message", "status", "details": […]}}, which may be in a list."""
    error = find_error_object(parse_json(body))
    message = str(error.get("message") or "")
    delay = read_retry_delay(error)
    return ApiError(
        classify_error(status, error, message),
        message or describe_body(status, body),
        status=status,
        retry_after=read_retry_after(headers) if delay is None else delay,
    )


def read_stream_error(document: Any) -> ApiError:
    """Parse an error inside a stream, whose HTTP status was 200."""
    error = find_error_object(document)
    code = error.get("code")
    message = str(error.get("message") or "")
    return ApiError(
        classify_error(code if isinstance(code, int) else 500, error, message),
        message or "the model failed in mid-answer",
        retry_after=read_retry_delay(error),
    )


def find_trailing_error(body: bytes) -> ApiError | None:
    """Find an error that is plain JSON in the stream, outside any event.

    Google ends broken streams like this, and its SDKs look for it too. It starts at the start of a
    line, and nothing follows it.
    """
    starts = re.finditer(rb"^[\[{]", body, re.MULTILINE)
    for match in islice(starts, 8):  # with many such lines it is something else
        document = parse_json(body[match.start() :])
        inner = document[0] if isinstance(document, list) and document else document
        if isinstance(inner, dict) and inner.get("error"):
            return read_stream_error(inner)
    return None


def parse_json(body: bytes) -> Any:
    """Parse a body. Returns None if it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None


def find_error_object(document: Any) -> dict[str, Any]:
    """Return the error object; empty if there is none in a known form."""
    if isinstance(document, list) and document:
        document = document[0]
    if isinstance(document, dict):
        document = document.get("error", document)
    if isinstance(document, str):
        return {"message": document}
    return document if isinstance(document, dict) else {}


def classify_error(status: int, error: dict[str, Any], message: str) -> ErrorKind:
    kind = STATUS_NAME_KINDS.get(str(error.get("status"))) or classify_status(status)
    lowered = message.lower()
    if kind is ErrorKind.INVALID:
        if any(words in lowered for words in TOO_LONG_PHRASES):
            return ErrorKind.CONTEXT
        # A wrong key and a forbidden country are INVALID_ARGUMENT and FAILED_PRECONDITION.
        if "api key" in lowered or "location is not supported" in lowered:
            return ErrorKind.AUTH
    if kind is ErrorKind.RATE_LIMIT and "credits are depleted" in lowered:
        return ErrorKind.QUOTA
    return kind


def read_retry_delay(error: dict[str, Any]) -> float | None:
    """Return the seconds of a RetryInfo among the details: {"retryDelay": "7s"}."""
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and str(detail.get("@type")).endswith("RetryInfo"):
            try:
                return max(0.0, float(str(detail.get("retryDelay")).removesuffix("s")))
            except ValueError:
                return None
    return None
