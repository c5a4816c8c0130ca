"""Errors of the gateway. Each message says what to do next."""

from crabtalk.client import ConnectionClosedError, ServerError, UnexpectedReplyError
from crabtalk.protocol import FrameError

# The errors that a client gets when the daemon stops or is stopping.
DAEMON_AWAY_ERRORS = (OSError, ConnectionClosedError, FrameError, ServerError, UnexpectedReplyError)


class WebGatewayError(Exception):
    """The gateway cannot continue until a person changes something."""


class RelayUnavailableError(Exception):
    """The relay does not answer, or not in time. The gateway tries again."""


class RelayRefusedError(Exception):
    """The relay refused the request."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the relay answered {status}: {reason}")
        self.status = status
        self.reason = reason

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (408, 425, 429) or self.status >= 500
