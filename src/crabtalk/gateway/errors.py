"""What a gateway cannot do: each with a sentence that says what to do next."""

from crabtalk.client import ConnectionClosedError, ServerError, UnexpectedReplyError
from crabtalk.protocol import FrameError

# What a daemon that goes away leaves its clients with.
DAEMON_UNAVAILABLE_ERRORS = (OSError, ConnectionClosedError, FrameError, UnexpectedReplyError)
NOT_FOUND = 404
BUSY = 503


class GatewayError(Exception):
    """It cannot go on like this, and a person has to do something about it."""


def is_daemon_unavailable(error: Exception) -> bool:
    """Whether the same may work when the daemon is back, or has room."""
    if isinstance(error, ServerError):
        return error.code == BUSY
    return isinstance(error, DAEMON_UNAVAILABLE_ERRORS)
