"""What a request can fail with, and how a failure looks on the wire.

A server raises one of these; `error_message` is the only place where an exception becomes an
ErrorMsg. Codes are HTTP's, with HTTP's meanings.
"""

import logging
from typing import ClassVar

from . import crabtalk_pb2 as wire

log = logging.getLogger(__name__)


class RequestError(Exception):
    """A request that was refused or failed, with a sentence for the person who made it."""

    code: ClassVar[int] = 500


class BadRequestError(RequestError):
    """The request cannot be understood or lacks something."""

    code = 400


class UnauthorizedError(RequestError):
    """The caller did not show who it is, or may not."""

    code = 401


class NotFoundError(RequestError):
    """What the request names does not exist."""

    code = 404


class ConflictError(RequestError):
    """What the request says contradicts what is there already."""

    code = 409


class GoneError(RequestError):
    """The request belongs to an older protocol and will not come back."""

    code = 410


class TooLargeError(RequestError):
    """The request, or the answer to it, does not fit a frame, or is of too many parts."""

    code = 413


class TooManyRequestsError(RequestError):
    """This connection has too much running already; others are not concerned."""

    code = 429


class InternalError(RequestError):
    """The server failed at something it should have been able to do."""

    code = 500


class UnsupportedError(RequestError):
    """This server does not offer the request."""

    code = 501


class UnavailableError(RequestError):
    """The server cannot take this now; the same request may succeed later."""

    code = 503


def to_error_message(error: Exception) -> wire.ErrorMsg:
    """The wire form of a failure.

    A group of one, as a TaskGroup raises it, counts as the one. An exception nobody meant for the
    client is a fault of ours: the log gets all of it, the client its type only, because the text
    of a foreign exception may carry keys or paths.
    """
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, RequestError):
        # File names may hold what UTF-8 cannot, and an answer must not fail for want of a name.
        sentence = str(error).encode(errors="replace").decode()
        return wire.ErrorMsg(code=error.code, message=sentence)
    log.error("unexpected failure while answering a request", exc_info=error)
    sentence = f"internal error ({type(error).__name__}); the daemon's log has the details"
    return wire.ErrorMsg(code=InternalError.code, message=sentence)
