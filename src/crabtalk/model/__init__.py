"""LLMs: neutral messages, one Provider protocol, and the only rooms that know a vendor's JSON."""

from .assembler import Assembler
from .errors import ApiError, ErrorKind
from .http import HttpClient, Timeouts
from .messages import (
    Chunk,
    Finish,
    Image,
    Message,
    ModelInfo,
    Request,
    Response,
    Role,
    Tool,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from .provider import HttpProvider, Provider, Retry

__all__ = [
    "ApiError",
    "Assembler",
    "Chunk",
    "ErrorKind",
    "Finish",
    "HttpClient",
    "HttpProvider",
    "Image",
    "Message",
    "ModelInfo",
    "Provider",
    "Request",
    "Response",
    "Retry",
    "Role",
    "Timeouts",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
]
