"""LLMs: vendor-neutral messages, one Provider protocol, and subpackages for each vendor's JSON."""

from .discovery import (
    LOCAL_SETTINGS,
    SETUP_HELP,
    DiscoveredProvider,
    LocalServer,
    choose_preferred_model,
    discover_providers,
)
from .errors import ApiError, ErrorKind
from .http_client import HttpClient, Timeouts
from .messages import (
    Chunk,
    FinishReason,
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
from .provider import HttpProvider, Provider, RetryPolicy
from .provider_settings import ProviderSettings, ProviderSettingsError, read_provider_settings
from .registry import RegisteredProvider, Registry, open_registry
from .response_assembler import ResponseAssembler

__all__ = [
    "LOCAL_SETTINGS",
    "SETUP_HELP",
    "ApiError",
    "Chunk",
    "DiscoveredProvider",
    "ErrorKind",
    "FinishReason",
    "HttpClient",
    "HttpProvider",
    "Image",
    "LocalServer",
    "Message",
    "ModelInfo",
    "Provider",
    "ProviderSettings",
    "ProviderSettingsError",
    "RegisteredProvider",
    "Registry",
    "Request",
    "Response",
    "ResponseAssembler",
    "RetryPolicy",
    "Role",
    "Timeouts",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
    "choose_preferred_model",
    "discover_providers",
    "open_registry",
    "read_provider_settings",
]
