"""The engine: conversations, the agent loop, guests, compaction. No socket, no protocol."""

from typing import TYPE_CHECKING

from crabtalk.late import late
from crabtalk.storage import find_end

from .clock import Clock
from .compaction import title_of
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
    key_conflict,
)
from .events import (
    Approval,
    AskOption,
    AskQuestion,
    AskUser,
    Compacted,
    ContextUsage,
    Done,
    Event,
    Heard,
    Refused,
    Started,
    StopReason,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolProgress,
    ToolResult,
    ToolsComplete,
    ToolStart,
    UserSteered,
)
from .hook import Access, Env, Hook, ToolDispatch, ToolError, ToolOutput
from .limits import Limits, require_whole
from .request import escape_markup
from .run import Parent, Run
from .run_tree import RunTree, TreeLimitError
from .runtime import DEFAULT_SENDER, Runtime
from .search import Scope, SessionHit, SessionIndex, WindowItem
from .transcript import Numbered

if TYPE_CHECKING:
    from .stored_run import dropped_events, read_usage

__all__ = [
    "DEFAULT_SENDER",
    "Access",
    "Approval",
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
    "Heard",
    "Hook",
    "KeyConflictError",
    "Limits",
    "NothingInFlightError",
    "NothingToCompactError",
    "Numbered",
    "Parent",
    "Refused",
    "Run",
    "RunTree",
    "Runtime",
    "RuntimeRefusalError",
    "Scope",
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
    "ToolDispatch",
    "ToolError",
    "ToolOutput",
    "ToolProgress",
    "ToolResult",
    "ToolStart",
    "ToolsComplete",
    "TreeLimitError",
    "UnknownAgentError",
    "UnknownConversationError",
    "UnknownToolError",
    "UserSteered",
    "WindowItem",
    "dropped_events",
    "escape_markup",
    "find_end",
    "key_conflict",
    "read_usage",
    "require_whole",
    "title_of",
]

# For runs that are over, which people ask for now and then.
__getattr__ = late(__name__, {"stored_run": ("dropped_events", "read_usage")})
