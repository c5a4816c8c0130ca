"""Usage reports in the form that relays count. The relay can read them, so they are optional.

Costs are not known here, and devices see the tokens of each call in the envelopes anyway.
"""

from typing import Any

from crabtalk_web.adapter import ReceivedEvent
from crabtalk_web.adapter.run_events import RunEnded
from crabtalk_web.stream import derive_id

from .session_identity import SessionIdentity


def build_usage_report(
    identity: SessionIdentity, session: str, received: ReceivedEvent
) -> dict[str, Any] | None:
    """Return None unless it is the end of a run with known usage. A repeated report counts once."""
    usage = received.event.usage if isinstance(received.event, RunEnded) else None
    if usage is None:
        return None
    cached = min(usage.cached, usage.prompt)
    return {
        "key": derive_id(identity.tag, "usage", received.run),
        "sessionId": session,
        "tokens": {
            "total": usage.prompt + usage.completion,
            "input": usage.prompt - cached,
            "output": usage.completion,
            "cache_creation": 0,
            "cache_read": cached,
        },
        "cost": {"total": 0, "input": 0, "output": 0},
    }
