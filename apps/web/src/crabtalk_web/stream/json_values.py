"""JSON values that every reader accepts, from any source."""

import json
import math
from typing import Any

from .envelope import EnvelopeError

# Deep enough for any tool's arguments. Python cannot encode values that are much deeper.
MAX_DEPTH = 64


def parse_json(data: bytes | str) -> Any:
    """Raises EnvelopeError."""
    try:
        return json.loads(data, parse_constant=refuse_constant, parse_float=parse_finite)
    except (ValueError, RecursionError) as error:
        raise EnvelopeError(f"this is not JSON: {error}") from None


def clean_json_value(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return the value with all texts encodable as UTF-8. Raises EnvelopeError."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise EnvelopeError(f"{value} is no number that JSON has")
        return value
    if depth == 0:
        raise EnvelopeError(f"this is more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise EnvelopeError("a key is no text")
        return {
            replace_surrogates(key): clean_json_value(entry, depth - 1)
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [clean_json_value(entry, depth - 1) for entry in value]
    raise EnvelopeError(f"{type(value).__name__} is nothing that JSON has")


def replace_surrogates(value: str) -> str:
    """Half a surrogate pair becomes U+FFFD, as it does in a browser."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is no number that JSON has")


def parse_finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:20]} is too large")
    return value
