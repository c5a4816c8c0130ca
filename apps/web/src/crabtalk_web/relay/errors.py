"""What the relay refuses, and what it cannot do: each with a sentence that says what to do next."""

from collections.abc import Mapping
from typing import Any


class RelayError(Exception):
    """A request that is refused. It becomes an answer with this status."""

    def __init__(self, status: int, text: str, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.body = dict(body or {"error": text})


class RelayConfigError(Exception):
    """The relay cannot start like this."""


def build_not_found_error(what: str) -> RelayError:
    return RelayError(404, f"{what} not found")


def build_invalid_error(where: str, reason: str) -> RelayError:
    """In the shape clients of this protocol expect of a request that does not parse."""
    message = f"{where} {reason}"
    return RelayError(400, message, {"error": "Error", "message": message, "statusCode": 400})
