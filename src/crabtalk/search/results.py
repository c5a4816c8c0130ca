"""What a search is limited to, and what it returns."""

import msgspec

from crabtalk.model.messages import Role

# RFC 0185, hard limits.
MAX_HITS = 20
MAX_WINDOW_ITEMS = 16
MAX_SNIPPET_BYTES = 1024


class SearchScope(msgspec.Struct, frozen=True):
    """Whose conversations may be found: None leaves it open. To decide it is the caller's part."""

    agent: str | None = None
    sender: str | None = None


class WindowItem(msgspec.Struct, frozen=True):
    """A message near the one that matched, or that one: a bounded part of it."""

    id: int
    role: Role
    snippet: str
    truncated: bool
    tool_name: str = ""  # the tool that answered, or the first one called
    agent: str = ""  # the guest that spoke


class SessionHit(msgspec.Struct, frozen=True):
    """A conversation that was found, and where in it."""

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
    """As many around a message as may be shown, taken from both sides alike."""
    room = MAX_WINDOW_ITEMS - 1
    before, after = min(max(before, 0), room), min(max(after, 0), room)
    over = max(0, before + after - room)
    fewer = min(before, over // 2)
    fewer_after = min(after, over - fewer)
    return before - (over - fewer_after), after - fewer_after
