"""LLMs: neutral messages, one Provider protocol, and the only rooms that know a vendor's JSON."""

from .assembler import Assembler
from .discovery import LOCAL, WAYS_ON, Found, LocalServer, discover, preferred
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
from .registry import Entry, Registry, open_registry
from .settings import ProviderSettings, SettingsError, read_settings

__all__ = [
    "LOCAL",
    "WAYS_ON",
    "ApiError",
    "Assembler",
    "Chunk",
    "Entry",
    "ErrorKind",
    "Finish",
    "Found",
    "HttpClient",
    "HttpProvider",
    "Image",
    "LocalServer",
    "Message",
    "ModelInfo",
    "Provider",
    "ProviderSettings",
    "Registry",
    "Request",
    "Response",
    "Retry",
    "Role",
    "SettingsError",
    "Timeouts",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
    "discover",
    "open_registry",
    "preferred",
    "read_settings",
]
