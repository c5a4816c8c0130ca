"""PostgreSQL as storage, for daemons on any number of machines. Needs `crabtalk[postgres]`."""

from .claims import PostgresTurnClaim
from .mail import Mailbox, PeerRefusedError
from .members import MemberInfo
from .memories import PostgresMemoryStore
from .storage import PostgresStorage

__all__ = [
    "Mailbox",
    "MemberInfo",
    "PeerRefusedError",
    "PostgresMemoryStore",
    "PostgresStorage",
    "PostgresTurnClaim",
]
