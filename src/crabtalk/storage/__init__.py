"""Where state lives: the Storage protocol, and its backends."""

from typing import TYPE_CHECKING

from crabtalk.late import late

from .acceptance import Accepted
from .agent import MASK, Agent, AgentError, McpServer, check_name, read_agent, settings_of, unmask
from .errors import FencedError, StorageError, StorageUnavailableError
from .files import FileStorage
from .following import Changes, Followed, Place
from .memory import MemoryStorage
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
from .storage import Claim, Stamp, Storage
from .subscription import Subscription

if TYPE_CHECKING:
    from .verification import Damage, verify_log

__all__ = [
    "MASK",
    "Accepted",
    "Agent",
    "AgentError",
    "Archive",
    "Changes",
    "Claim",
    "Damage",
    "EventRecord",
    "FencedError",
    "FileStorage",
    "Followed",
    "MarkerRecord",
    "McpServer",
    "MemoryStorage",
    "MessageRecord",
    "Meta",
    "MetaRecord",
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
    "log_name",
    "read_agent",
    "settings_of",
    "unmask",
    "verify_log",
]

# For a check of a whole home, which people ask for now and then.
__getattr__ = late(__name__, {"verification": ("Damage", "verify_log")})
