"""The engine: conversations, the agent loop, guests, compaction. No socket, no protocol."""

from .clock import Clock
from .errors import (
    BusyError,
    CompactionError,
    NothingInFlightError,
    NothingToCompactError,
    RuntimeRefusalError,
    UnknownAgentError,
    UnknownConversationError,
)
from .events import (
    Compacted,
    ContextUsage,
    Done,
    Event,
    Started,
    StopReason,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolResult,
    ToolsComplete,
    ToolStart,
    UserSteered,
)
from .hook import Env, Hook, ToolDispatch, ToolError
from .limits import Limits
from .run import Parent, Run
from .runtime import DEFAULT_SENDER, Runtime

__all__ = [
    "DEFAULT_SENDER",
    "BusyError",
    "Clock",
    "Compacted",
    "CompactionError",
    "ContextUsage",
    "Done",
    "Env",
    "Event",
    "Hook",
    "Limits",
    "NothingInFlightError",
    "NothingToCompactError",
    "Parent",
    "Run",
    "Runtime",
    "RuntimeRefusalError",
    "Started",
    "StopReason",
    "TextDelta",
    "TextEnd",
    "TextStart",
    "ThinkingDelta",
    "ThinkingEnd",
    "ThinkingStart",
    "ToolDispatch",
    "ToolError",
    "ToolResult",
    "ToolStart",
    "ToolsComplete",
    "UnknownAgentError",
    "UnknownConversationError",
    "UserSteered",
]
