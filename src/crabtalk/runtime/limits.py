"""The limits of the engine, so that no input makes it grow without bound or block other users."""

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """The defaults are so high that a person never reaches them."""

    # Turns at once, running and waiting; the next one is refused.
    runs: int = 4096
    # Characters of the messages of all those turns together, steering messages included.
    held_bytes: int = 256 * 1024 * 1024
    # Conversations kept in memory while nothing runs in them, and bytes of text they may hold.
    live_conversations: int = 256
    live_bytes: int = 64 * 1024 * 1024
    # Events a stream's reader may be behind before its run waits for it.
    stream_events: int = 256
    # Bytes of a run's events kept for its followers; older steps are read from the log.
    run_buffer: int = 1024 * 1024
    # Steering messages that may wait to be read.
    steers: int = 64
    # Calls of one step that are executed; the rest get an error as their result.
    tool_calls: int = 64
    # For one turn and the runs it delegates: runs, requests to models, tokens as models count them.
    tree_runs: int = 64
    tree_model_calls: int = 1000
    tree_tokens: int = 20_000_000
    # Bytes of one tool's output that reach the model, the client and the log.
    tool_output: int = 64 * 1024

    def __post_init__(self) -> None:
        require_positive_integers(self)


def require_positive_integers(limits: Any) -> None:
    """Raises ValueError unless every field of a dataclass is an integer above zero."""
    for field in dataclasses.fields(limits):
        value = getattr(limits, field.name)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ValueError(f"{field.name} must be a whole number above zero, not {value!r:.80}")
