"""Parses the parts of answers that vendors have in common: JSON, errors, retry delays, usage."""

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
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested too deeply
        start = body[:80].decode(errors="replace")
        raise ApiError(ErrorKind.PROTOCOL, f"the answer is not JSON: {start!r}") from None


def read_model_list(body: bytes, key: str) -> list[Any]:
    """Return the list under `key`, with entries of any type. Raises ApiError if it is no list."""
    document = decode_json(body)
    entries = document.get(key) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ApiError(ErrorKind.PROTOCOL, "the list of models is not one; check base_url")
    return entries


def describe_body(status: int, body: bytes) -> str:
    """Return an error message for a body that is not in the vendor's error format."""
    text = " ".join(body[:200].decode(errors="replace").split())
    if not text:
        return "refused without a word"
    if text.startswith("<"):
        return "answered with a web page; check base_url"
    return text


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait, from `retry-after-ms`, or `retry-after` as a number or date."""
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
    """Return the message and the code of an error body; empty if it has none."""
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
    if not isinstance(code, str) or not code:  # llama-server repeats the status here
        code = error.get("type") or code
    return str(message), str(code)


def build_usage(
    *, fresh: int, cached: int | None, stored: int, completion: int, reasoning: int | None = None
) -> Usage:
    """Build the usage for vendors that count tokens read from the cache, written to it and
    uncached ones separately."""
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
