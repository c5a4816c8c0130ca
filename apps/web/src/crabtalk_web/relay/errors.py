"""Errors of the relay. Each message says what to do next."""

from collections.abc import Mapping
from typing import Any


class RelayError(Exception):
    """A refused request. It becomes a response with this status."""

    def __init__(self, status: int, text: str, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.body = dict(body or {"error": text})


class RelayConfigError(Exception):
    """The relay cannot start with this configuration."""


def build_not_found_error(what: str) -> RelayError:
    return RelayError(404, f"{what} not found")


def build_invalid_error(where: str, reason: str) -> RelayError:
    """Return the error that clients of this protocol expect for an invalid request."""
    message = f"{where} {reason}"
    return RelayError(400, message, {"error": "Error", "message": message, "statusCode": 400})
