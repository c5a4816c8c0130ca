"""Where state lives: the Storage protocol, and its backends."""

from typing import TYPE_CHECKING

from crabtalk.late import late

from .acceptance import CUT_OFF, Accepted, find_end
from .agent import MASK, Agent, AgentError, McpServer, check_name, read_agent, settings_of, unmask
from .errors import FencedError, StorageError, StorageUnavailableError
from .files import FileStorage
from .following import Changes, Followed, Place
from .keys import ArchivedKeys, KeyUse, hash_content
from .names import log_name
from .records import (
    Archive,
    EventRecord,
    MarkerRecord,
    MessageRecord,
    Meta,
    MetaRecord,
    Page,
    Pair,
    Record,
    Stored,
)
from .storage import Claim, OpenRuns, Stamp, Storage
from .subscription import Subscription

if TYPE_CHECKING:
    from .memory import MemoryStorage
    from .verification import Damage, verify_log

__all__ = [
    "CUT_OFF",
    "MASK",
    "Accepted",
    "Agent",
    "AgentError",
    "Archive",
    "ArchivedKeys",
    "Changes",
    "Claim",
    "Damage",
    "EventRecord",
    "FencedError",
    "FileStorage",
    "Followed",
    "KeyUse",
    "MarkerRecord",
    "McpServer",
    "MemoryStorage",
    "MessageRecord",
    "Meta",
    "MetaRecord",
    "OpenRuns",
    "Page",
    "Pair",
    "Place",
    "Record",
    "Stamp",
    "Storage",
    "StorageError",
    "StorageUnavailableError",
    "Stored",
    "Subscription",
    "check_name",
    "find_end",
    "hash_content",
    "log_name",
    "read_agent",
    "settings_of",
    "unmask",
    "verify_log",
]

# For those who embed the engine, and for a check of a whole home. No daemon needs them to run.
__getattr__ = late(
    __name__, {"memory": ("MemoryStorage",), "verification": ("Damage", "verify_log")}
)
