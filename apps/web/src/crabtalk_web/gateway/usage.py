"""Usage: what a run took, as relays count it. They can read it: it is told where that is wanted.

What it costs nobody here knows, and devices see the tokens of each call in the envelopes anyway.
"""

from typing import Any

from crabtalk_web.adapter import Heard
from crabtalk_web.adapter.happenings import Ended
from crabtalk_web.stream import derived_id

from .identity import Identity


def usage_report(identity: Identity, session: str, heard: Heard) -> dict[str, Any] | None:
    """None but at the end of a run that says what it took. Told again, it counts once."""
    used = heard.what.used if isinstance(heard.what, Ended) else None
    if used is None:
        return None
    cached = min(used.cached, used.prompt)
    return {
        "key": derived_id(identity.tag, "usage", heard.run),
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
