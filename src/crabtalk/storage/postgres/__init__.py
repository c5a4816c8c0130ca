"""Storage in PostgreSQL, for daemons on any number of machines. Needs `crabtalk[postgres]`."""

from .mailbox import Mailbox, PeerRefusedError
from .membership import MemberInfo
from .memory_store import PostgresMemoryStore
from .storage import PostgresStorage
from .turn_claims import PostgresTurnClaim

__all__ = [
    "Mailbox",
    "MemberInfo",
    "PeerRefusedError",
    "PostgresMemoryStore",
    "PostgresStorage",
    "PostgresTurnClaim",
]
