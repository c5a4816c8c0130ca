"""Errors of a gateway. Each has a sentence that says what to do next."""

from crabtalk.client import ConnectionClosedError, ServerError, UnexpectedReplyError
from crabtalk.protocol import FrameError

# Errors that a client raises when its daemon goes away.
DAEMON_UNAVAILABLE_ERRORS = (OSError, ConnectionClosedError, FrameError, UnexpectedReplyError)
NOT_FOUND = 404
BUSY = 503


class GatewayError(Exception):
    """The gateway cannot go on until a person changes something."""


def is_daemon_unavailable(error: Exception) -> bool:
    """Whether the same request may work later, when the daemon is back or has room."""
    if isinstance(error, ServerError):
        return error.code == BUSY
    return isinstance(error, DAEMON_UNAVAILABLE_ERRORS)
