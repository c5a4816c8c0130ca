"""Usage: what a run took, as relays count it. They can read it: it is told where that is wanted.

What it costs nobody here knows, and devices see the tokens of each call in the envelopes anyway.
"""

from typing import Any

from crabtalk_web.adapter import ReceivedEvent
from crabtalk_web.adapter.run_events import RunEnded
from crabtalk_web.stream import derive_id

from .session_identity import SessionIdentity


def build_usage_report(
    identity: SessionIdentity, session: str, heard: ReceivedEvent
) -> dict[str, Any] | None:
    """None but at the end of a run that says what it took. Told again, it counts once."""
    used = heard.event.usage if isinstance(heard.event, RunEnded) else None
    if used is None:
        return None
    cached = min(used.cached, used.prompt)
    return {
        "key": derive_id(identity.tag, "usage", heard.run),
        "sessionId": session,
        "tokens": {
            "total": used.prompt + used.completion,
            "input": used.prompt - cached,
            "output": used.completion,
            "cache_creation": 0,
            "cache_read": cached,
        },
        "cost": {"total": 0, "input": 0, "output": 0},
    }
