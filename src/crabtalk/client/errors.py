"""What a client's call can fail with."""

from crabtalk.protocol import ConnectionClosedError

__all__ = [
    "CannotConnectError",
    "ConnectionClosedError",
    "DaemonNotRunningError",
    "ServerError",
    "UnexpectedReplyError",
]


class ServerError(Exception):
    """The server's answer was an error. `code` is HTTP's, `message` the server's own sentence."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"server error ({code}): {message}")
        self.code = code
        self.message = message


class UnexpectedReplyError(Exception):
    """The answer is not one the request has. The two ends do not speak the same protocol."""


class CannotConnectError(ConnectionError):
    """Something is there, and it cannot be talked to."""


class DaemonNotRunningError(CannotConnectError):
    """Nobody answers where the daemon should be."""
