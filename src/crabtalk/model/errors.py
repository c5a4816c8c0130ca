"""ApiError: the failure of a model call, with a kind that is the same for all vendors."""

from enum import Enum


class ErrorKind(Enum):
    AUTH = "auth"  # the key is missing, wrong, or not allowed to do this
    NOT_FOUND = "not_found"  # no such model, or no such endpoint
    INVALID = "invalid"  # the request is malformed, or the model does not support it
    CONTEXT = "context"  # the request is longer than the model can read
    FILTERED = "filtered"  # the vendor refused the content
    RATE_LIMIT = "rate_limit"  # too much, too often, or the quota is used up for now
    QUOTA = "quota"  # nothing left to spend; waiting does not help
    OVERLOADED = "overloaded"  # the vendor asks to try later
    SERVER = "server"  # the vendor failed
    TIMEOUT = "timeout"
    CONNECTION = "connection"  # unreachable, or cut off
    TLS = "tls"  # reached, but its certificate is not valid
    PROTOCOL = "protocol"  # the answer does not follow this vendor's API
    CONFIG = "config"  # nothing was sent: the configuration does not allow it


# The same request may succeed a moment later.
TRANSIENT = frozenset(
    {
        ErrorKind.RATE_LIMIT,
        ErrorKind.OVERLOADED,
        ErrorKind.SERVER,
        ErrorKind.TIMEOUT,
        ErrorKind.CONNECTION,
    }
)


class ApiError(Exception):
    """A failed model call. `message` is the vendor's own message if there is one."""

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        provider: str = "",
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.provider = provider
        self.status = status
        self.retry_after = retry_after

    def __str__(self) -> str:
        where = f"{self.provider}: " if self.provider else ""
        status = f" (HTTP {self.status})" if self.status is not None else ""
        return f"{where}{self.message}{status}"

    @property
    def is_transient(self) -> bool:
        return self.kind in TRANSIENT


# The kind of a status, used if the vendor's body is not more specific.
STATUS_KINDS = {
    400: ErrorKind.INVALID,
    401: ErrorKind.AUTH,
    402: ErrorKind.QUOTA,
    403: ErrorKind.AUTH,
    404: ErrorKind.NOT_FOUND,
    408: ErrorKind.TIMEOUT,
    409: ErrorKind.OVERLOADED,
    413: ErrorKind.CONTEXT,
    422: ErrorKind.INVALID,
    429: ErrorKind.RATE_LIMIT,
    503: ErrorKind.OVERLOADED,
    504: ErrorKind.TIMEOUT,
    529: ErrorKind.OVERLOADED,
}


def classify_status(status: int) -> ErrorKind:
    if status in STATUS_KINDS:
        return STATUS_KINDS[status]
    return ErrorKind.SERVER if status >= 500 else ErrorKind.INVALID
