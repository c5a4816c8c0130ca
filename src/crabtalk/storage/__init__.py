"""Where state lives: the Storage protocol, and its backends."""

from .agent import MASK, Agent, AgentError, McpServer, check_name, read_agent, settings_of, unmask
from .errors import StorageError
from .files import FileStorage
from .following import Followed, Place
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
from .storage import Storage

__all__ = [
    "MASK",
    "Agent",
    "AgentError",
    "Archive",
    "EventRecord",
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
    "Storage",
    "StorageError",
    "Stored",
    "check_name",
    "log_name",
    "read_agent",
    "settings_of",
    "unmask",
]
