"""The engine: conversations, the agent loop, guests, compaction. No socket, no protocol."""

from typing import TYPE_CHECKING

from crabtalk.lazy_imports import load_lazily
from crabtalk.search import SearchScope, SessionHit, SessionIndex, WindowItem
from crabtalk.storage import find_run_end

from .clock import Clock
from .compaction import make_title
from .errors import (
    BusyError,
    CompactionError,
    KeyConflictError,
    NothingInFlightError,
    NothingToCompactError,
    RuntimeRefusalError,
    UnknownAgentError,
    UnknownConversationError,
    UnknownToolError,
    key_conflict_error,
)
from .events import (
    ApprovalRequest,
    AskOption,
    AskQuestion,
    AskUser,
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
    ToolProgress,
    ToolRefused,
    ToolResult,
    ToolsComplete,
    ToolStart,
    UserMessageReceived,
    UserSteered,
)
from .hook import Env, Hook, ToolAccess, ToolDispatch, ToolError, ToolOutput
from .limits import RuntimeLimits, require_positive_integers
from .model_request import escape_markup
from .replay_buffer import NumberedEvent
from .run import ParentRun, Run
from .run_tree import RunTree, TreeLimitError
from .runtime import DEFAULT_SENDER, Runtime

if TYPE_CHECKING:
    from .stored_run import dropped_events, read_usage

__all__ = [
    "DEFAULT_SENDER",
    "ApprovalRequest",
    "AskOption",
    "AskQuestion",
    "AskUser",
    "BusyError",
    "Clock",
    "Compacted",
    "CompactionError",
    "ContextUsage",
    "Done",
    "Env",
    "Event",
    "Hook",
    "KeyConflictError",
    "NothingInFlightError",
    "NothingToCompactError",
    "NumberedEvent",
    "ParentRun",
    "Run",
    "RunTree",
    "Runtime",
    "RuntimeLimits",
    "RuntimeRefusalError",
    "SearchScope",
    "SessionHit",
    "SessionIndex",
    "Started",
    "StopReason",
    "TextDelta",
    "TextEnd",
    "TextStart",
    "ThinkingDelta",
    "ThinkingEnd",
    "ThinkingStart",
    "ToolAccess",
    "ToolDispatch",
    "ToolError",
    "ToolOutput",
    "ToolProgress",
    "ToolRefused",
    "ToolResult",
    "ToolStart",
    "ToolsComplete",
    "TreeLimitError",
    "UnknownAgentError",
    "UnknownConversationError",
    "UnknownToolError",
    "UserMessageReceived",
    "UserSteered",
    "WindowItem",
    "dropped_events",
    "escape_markup",
    "find_run_end",
    "key_conflict_error",
    "make_title",
    "read_usage",
    "require_positive_integers",
]

# Only needed for finished runs, which clients rarely ask for.
__getattr__ = load_lazily(__name__, {"stored_run": ("dropped_events", "read_usage")})
