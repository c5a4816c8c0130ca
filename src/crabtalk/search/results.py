"""The scope of a search, and its results."""

import msgspec

from crabtalk.model.messages import Role

# RFC 0185: hard limits.
MAX_HITS = 20
MAX_WINDOW_ITEMS = 16
MAX_SNIPPET_BYTES = 1024


class SearchScope(msgspec.Struct, frozen=True):
    """Whose conversations may be found: None means any. The caller decides it."""

    agent: str | None = None
    sender: str | None = None


class WindowItem(msgspec.Struct, frozen=True):
    """The matching message or one near it, cut to a bounded size."""

    id: int
    role: Role
    snippet: str
    truncated: bool
    tool_name: str = ""  # the tool that answered, or the first tool called
    agent: str = ""  # the guest that wrote it


class SessionHit(msgspec.Struct, frozen=True):
    """A conversation that matched, and where."""

    handle: str
    agent: str
    sender: str
    title: str
    created_at: str
    updated_at: str
    message_count: int
    score: float
    message_id: int
    window: tuple[WindowItem, ...]


def clamp_window(before: int, after: int) -> tuple[int, int]:
    """Limit the messages around a match to the maximum, reducing both sides alike."""
    room = MAX_WINDOW_ITEMS - 1
    before, after = min(max(before, 0), room), min(max(after, 0), room)
    over = max(0, before + after - room)
    fewer = min(before, over // 2)
    fewer_after = min(after, over - fewer)
    return before - (over - fewer_after), after - fewer_after
