"""What the gateway cannot do: each with a sentence that says what to do next."""

from crabtalk.client import ConnectionClosedError, ServerError, UnexpectedReplyError
from crabtalk.protocol import FrameError

# What a daemon that goes away, or is about to, leaves its clients with.
DAEMON_AWAY_ERRORS = (OSError, ConnectionClosedError, FrameError, ServerError, UnexpectedReplyError)


class WebGatewayError(Exception):
    """It cannot go on like this, and a person has to do something about it."""


class RelayUnavailableError(Exception):
    """Nobody answers where the relay is, or not in time. It is tried again."""


class RelayRefusedError(Exception):
    """The relay's answer was no."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the relay answered {status}: {reason}")
        self.status = status
        self.reason = reason

    @property
    def is_temporary(self) -> bool:
        """Whether the same may be welcome later."""
        return self.status in (408, 425, 429) or self.status >= 500
