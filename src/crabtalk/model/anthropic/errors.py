"""Converts Anthropic's errors to ApiError."""

from crabtalk.model.errors import ApiError, ErrorKind, classify_status
from crabtalk.model.response_reading import read_error_message

# `invalid_request_error` is missing here: it has several meanings, which the status tells apart.
ERROR_KINDS = {
    "authentication_error": ErrorKind.AUTH,
    "permission_error": ErrorKind.AUTH,
    "not_found_error": ErrorKind.NOT_FOUND,
    "request_too_large": ErrorKind.CONTEXT,
    "billing_error": ErrorKind.QUOTA,
    "rate_limit_error": ErrorKind.RATE_LIMIT,
    "overloaded_error": ErrorKind.OVERLOADED,
    "timeout_error": ErrorKind.TIMEOUT,
    "api_error": ErrorKind.SERVER,
}
# Errors without a type of their own, by their message.
MESSAGE_KINDS = (
    ("prompt is too long", ErrorKind.CONTEXT),
    ("exceed context limit", ErrorKind.CONTEXT),
    ("credit balance is too low", ErrorKind.QUOTA),
    ("api usage limits", ErrorKind.QUOTA),
    ("content filtering policy", ErrorKind.FILTERED),
)


def classify_error(status: int, code: str, message: str) -> ErrorKind:
    if code in ERROR_KINDS:
        return ERROR_KINDS[code]
    lowered = message.lower()
    by_message = next((kind for words, kind in MESSAGE_KINDS if words in lowered), None)
    return by_message or classify_status(status)


def read_stream_error(event: bytes) -> ApiError:
    """Parse an error inside a stream, whose HTTP status was 200."""
    message, code = read_error_message(event)
    kind = classify_error(400 if code == "invalid_request_error" else 500, code, message)
    return ApiError(kind, message or "the model failed in mid-answer")
