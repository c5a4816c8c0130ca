"""The Storage protocol for all persistent state, and its backends."""

from typing import TYPE_CHECKING

from crabtalk.lazy_imports import load_lazily

from .accepted_messages import CUT_OFF, AcceptedMessage, find_run_end
from .agent import (
    MASK,
    Agent,
    AgentError,
    McpServerConfig,
    check_agent_name,
    parse_agent,
    render_settings,
    unmask_settings,
)
from .errors import FencedError, StorageError, StorageUnavailableError
from .file_storage import FileStorage
from .log_names import make_log_name
from .message_keys import ArchivedKeys, KeyUse, hash_content
from .record_slices import LogChanges, RecordSlice, WindowRequest
from .records import (
    Archive,
    ConversationMeta,
    EventRecord,
    MarkerRecord,
    MessagePage,
    MessageRecord,
    MetaRecord,
    Pair,
    Record,
    StoredConversation,
)
from .storage import ConversationVersion, OpenRuns, Storage, TurnClaim
from .subscription import Subscription

if TYPE_CHECKING:
    from .memory_storage import MemoryStorage
    from .verification import LogDamage, verify_log

__all__ = [
    "CUT_OFF",
    "MASK",
    "AcceptedMessage",
    "Agent",
    "AgentError",
    "Archive",
    "ArchivedKeys",
    "ConversationMeta",
    "ConversationVersion",
    "EventRecord",
    "FencedError",
    "FileStorage",
    "KeyUse",
    "LogChanges",
    "LogDamage",
    "MarkerRecord",
    "McpServerConfig",
    "MemoryStorage",
    "MessagePage",
    "MessageRecord",
    "MetaRecord",
    "OpenRuns",
    "Pair",
    "Record",
    "RecordSlice",
    "Storage",
    "StorageError",
    "StorageUnavailableError",
    "StoredConversation",
    "Subscription",
    "TurnClaim",
    "WindowRequest",
    "check_agent_name",
    "find_run_end",
    "hash_content",
    "make_log_name",
    "parse_agent",
    "render_settings",
    "unmask_settings",
    "verify_log",
]

# Only for embedding the engine and for checking a whole home directory; no daemon needs them.
__getattr__ = load_lazily(
    __name__, {"memory_storage": ("MemoryStorage",), "verification": ("LogDamage", "verify_log")}
)
