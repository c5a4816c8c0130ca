"""Session search: full-text search over every message of every conversation."""

from .results import (
    MAX_HITS,
    MAX_SNIPPET_BYTES,
    MAX_WINDOW_ITEMS,
    SearchScope,
    SessionHit,
    WindowItem,
)
from .session_index import SessionIndex, SessionIndexStatistics

__all__ = [
    "MAX_HITS",
    "MAX_SNIPPET_BYTES",
    "MAX_WINDOW_ITEMS",
    "SearchScope",
    "SessionHit",
    "SessionIndex",
    "SessionIndexStatistics",
    "WindowItem",
]
