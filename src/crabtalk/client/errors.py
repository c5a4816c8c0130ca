"""The errors a client's call can raise."""

from crabtalk.protocol import ConnectionClosedError

__all__ = [
    "CannotConnectError",
    "ConnectionClosedError",
    "DaemonNotRunningError",
    "ServerError",
    "UnexpectedReplyError",
]


class ServerError(Exception):
    """The server answered with an error: `code` is an HTTP status, `message` the server's text."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"server error ({code}): {message}")
        self.code = code
        self.message = message


class UnexpectedReplyError(Exception):
    """The answer does not fit the request: the two ends speak different protocols."""


class CannotConnectError(ConnectionError):
    """Something listens at the address, but no connection to a daemon could be made."""


class DaemonNotRunningError(CannotConnectError):
    """No daemon answers at its address."""
