"""The errors a request can fail with, and their form on the wire.

A server raises a RequestError; only `to_error_message` turns an exception into an ErrorMsg. The
codes are HTTP status codes with their HTTP meanings.
"""

import logging
from typing import ClassVar

from . import crabtalk_pb2 as wire

log = logging.getLogger(__name__)


class RequestError(Exception):
    """The request was refused or failed. The message is a sentence for the person who made it."""

    code: ClassVar[int] = 500


class BadRequestError(RequestError):
    """The request is malformed or incomplete."""

    code = 400


class UnauthorizedError(RequestError):
    """The caller did not prove its identity, or lacks the permission."""

    code = 401


class NotFoundError(RequestError):
    """The request names something that does not exist."""

    code = 404


class ConflictError(RequestError):
    """The request contradicts the current state."""

    code = 409


class GoneError(RequestError):
    """The request belongs to an older protocol version and will not come back."""

    code = 410


class TooLargeError(RequestError):
    """The request or its answer does not fit in a frame, or the request has too many fields."""

    code = 413


class TooManyRequestsError(RequestError):
    """This connection has too many requests running; other connections are not affected."""

    code = 429


class InternalError(RequestError):
    """The server failed at something it should be able to do."""

    code = 500


class UnsupportedError(RequestError):
    """This server does not implement the request."""

    code = 501


class UnavailableError(RequestError):
    """The server cannot take the request now; the same request may succeed later."""

    code = 503


def to_error_message(error: Exception) -> wire.ErrorMsg:
    """Convert an exception to the ErrorMsg a client gets.

    An ExceptionGroup with one member, as a TaskGroup raises it, is treated as that member. Any
    exception other than a RequestError is a fault of the server: the log gets the traceback and the
    client only the type's name, because the text of such an exception may contain keys or paths.
    """
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, RequestError):
        # File names may contain surrogates, which UTF-8 cannot encode; the answer must not fail.
        sentence = str(error).encode(errors="replace").decode()
        return wire.ErrorMsg(code=error.code, message=sentence)
    log.error("unexpected failure while answering a request", exc_info=error)
    sentence = f"internal error ({type(error).__name__}); the daemon's log has the details"
    return wire.ErrorMsg(code=InternalError.code, message=sentence)
