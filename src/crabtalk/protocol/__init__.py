"""The wire protocol: messages, frames, errors, and the Server that every daemon implements.

`wire` is the module generated from proto/crabtalk.proto. Every package that talks to a client
uses its message classes. docs/protocol.md describes the protocol.
"""

from . import crabtalk_pb2 as wire
from .errors import (
    BadRequestError,
    ConflictError,
    GoneError,
    InternalError,
    NotFoundError,
    RequestError,
    TooLargeError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
    UnsupportedError,
    to_error_message,
)
from .frames import (
    HEADER_SIZE,
    MAX_FRAME,
    ConnectionClosedError,
    FrameDecoder,
    FrameError,
    FrameTooLargeError,
    encode_frame,
    encode_reply,
)
from .request_parser import LARGE_FRAME, parse_request_in_slices
from .routes import ROUTES, ReplyShape, Route
from .sender_folders import get_sender_folder
from .server import ReplyField, Server

# Incremented when clients can no longer work with older servers in a way `features` cannot express.
PROTOCOL_VERSION = 1

__all__ = [
    "HEADER_SIZE",
    "LARGE_FRAME",
    "MAX_FRAME",
    "PROTOCOL_VERSION",
    "ROUTES",
    "BadRequestError",
    "ConflictError",
    "ConnectionClosedError",
    "FrameDecoder",
    "FrameError",
    "FrameTooLargeError",
    "GoneError",
    "InternalError",
    "NotFoundError",
    "ReplyField",
    "ReplyShape",
    "RequestError",
    "Route",
    "Server",
    "TooLargeError",
    "TooManyRequestsError",
    "UnauthorizedError",
    "UnavailableError",
    "UnsupportedError",
    "encode_frame",
    "encode_reply",
    "get_sender_folder",
    "parse_request_in_slices",
    "to_error_message",
    "wire",
]
