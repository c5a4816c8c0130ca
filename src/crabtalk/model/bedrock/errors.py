"""Converts Bedrock's errors to ApiError."""

import msgspec

from crabtalk.model.bedrock.event_stream import EventStreamMessage
from crabtalk.model.errors import ApiError, ErrorKind

ERROR_KINDS = {
    "accessdenied": ErrorKind.AUTH,
    "unrecognizedclient": ErrorKind.AUTH,
    "expiredtoken": ErrorKind.AUTH,
    "invalidsignature": ErrorKind.AUTH,
    "incompletesignature": ErrorKind.AUTH,
    "missingauthenticationtoken": ErrorKind.AUTH,
    "resourcenotfound": ErrorKind.NOT_FOUND,
    "validation": ErrorKind.INVALID,
    "throttling": ErrorKind.RATE_LIMIT,
    "servicequotaexceeded": ErrorKind.OVERLOADED,
    "modelnotready": ErrorKind.OVERLOADED,
    "serviceunavailable": ErrorKind.OVERLOADED,
    "modeltimeout": ErrorKind.TIMEOUT,
    "modelerror": ErrorKind.SERVER,
    "modelstreamerror": ErrorKind.SERVER,
    "internalserver": ErrorKind.SERVER,
    "internalfailure": ErrorKind.SERVER,
}
# Errors without an exception of their own, by their message.
MESSAGE_KINDS = (
    ("too long", ErrorKind.CONTEXT),
    ("too many input tokens", ErrorKind.CONTEXT),
    ("exceed context limit", ErrorKind.CONTEXT),
    ("maximum context length", ErrorKind.CONTEXT),
    ("model identifier is invalid", ErrorKind.NOT_FOUND),
)


def classify_error(code: str, message: str) -> ErrorKind | None:
    """Classify an error. `code` comes from a header, a body or a stream, and may have a namespace
    or a URL."""
    name = code.split(":")[0].rsplit("#", 1)[-1].lower().removesuffix("exception")
    kind = ERROR_KINDS.get(name)
    if kind is ErrorKind.INVALID:
        lowered = message.lower()
        return next((kind for words, kind in MESSAGE_KINDS if words in lowered), kind)
    return kind


def read_error_message(body: bytes) -> tuple[str, str]:
    """Return the message and the code of an error body; empty if it has none."""
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(document, dict):
        return "", ""
    message = document.get("message") or document.get("Message") or document.get("originalMessage")
    return str(message or ""), str(document.get("__type") or "")


def read_stream_error(message: EventStreamMessage) -> ApiError:
    """Parse an error inside a stream, whose HTTP status was 200."""
    headers = message.headers
    code = str(headers.get(":exception-type") or headers.get(":error-code") or "")
    sentence, _ = read_error_message(message.payload)
    sentence = sentence or str(headers.get(":error-message") or "")
    return ApiError(
        classify_error(code, sentence) or ErrorKind.SERVER,
        sentence or f"the model failed in mid-answer ({code or 'no reason given'})",
    )
