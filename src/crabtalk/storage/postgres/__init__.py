"""PostgreSQL as storage, for daemons on any number of machines. Needs `crabtalk[postgres]`."""

from .claims import Claim
from .mail import Mail, RefusedError
from .members import Member
from .memories import PostgresMemories
from .storage import PostgresStorage

__all__ = ["Claim", "Mail", "Member", "PostgresMemories", "PostgresStorage", "RefusedError"]
