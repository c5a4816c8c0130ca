"""Reading what any vendor may answer: JSON or not, errors without words, when to come back."""

import email.utils
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from .errors import ApiError, ErrorKind
from .messages import Usage


def decode_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested to no end
        start = body[:80].decode(errors="replace")
        raise ApiError(ErrorKind.PROTOCOL, f"the answer is not JSON: {start!r}") from None


def read_model_list(body: bytes, key: str) -> list[Any]:
    """What a vendor has under that name, of any kind. Raises ApiError where that is no list."""
    document = decode_json(body)
    entries = document.get(key) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ApiError(ErrorKind.PROTOCOL, "the list of models is not one; check base_url")
    return entries


def describe_body(status: int, body: bytes) -> str:
    """Something to say about a body that says nothing we understand."""
    text = " ".join(body[:200].decode(errors="replace").split())
    if not text:
        return "refused without a word"
    if text.startswith("<"):
        return "answered with a web page; check base_url"
    return text


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from `retry-after-ms` or `retry-after` as a number or a date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            return max(0.0, float(value) * scale)
        except ValueError:
            pass
        try:
            moment = email.utils.parsedate_to_datetime(value)
        except ValueError:
            continue
        return max(0.0, moment.timestamp() - time.time())
    return None


def read_error_message(body: bytes) -> tuple[str, str]:
    """The sentence and the code of an error body; empty where it has none."""
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return "", ""
    if isinstance(document, list) and document:
        document = document[0]
    if not isinstance(document, dict):
        return "", ""
    error = document.get("error", document)
    if isinstance(error, str):
        return error, ""
    if not isinstance(error, dict):
        return "", ""
    message = error.get("message") or error.get("detail") or ""
    code = error.get("code") or ""
    if not isinstance(code, str) or not code:  # llama-server's is the status again
        code = error.get("type") or code
    return str(message), str(code)


def build_usage(
    *, fresh: int, cached: int | None, stored: int, completion: int, reasoning: int | None = None
) -> Usage:
    """For vendors that count what came from the cache, what went into it, and the rest, apart."""
    miss = fresh + stored
    prompt = miss + (cached or 0)
    return Usage(
        prompt=prompt,
        completion=completion,
        total=prompt + completion,
        cache_hit=cached,
        cache_miss=None if cached is None else miss,
        reasoning=reasoning,
    )
