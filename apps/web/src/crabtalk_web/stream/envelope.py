"""An envelope: one event with its role, time and turn. It is the unit that is sealed and stored."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .envelope_events import AnyEnvelopeEvent, Number, ServiceEvent

Role = Literal["user", "agent"]
# The ids that every reader accepts. The look-ahead is needed because Python's $ also matches before
# a final line end.
CUID = r"^[0-9a-z]{2,32}(?!\n)$"

Count = Annotated[int, Meta(ge=0)]


class EnvelopeError(ValueError):
    """Says what is wrong with an envelope, and where in it."""


class EnvelopeUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Token usage of one model call. All counts but `output_tokens` together fill the context."""

    input_tokens: Count
    output_tokens: Count
    cache_creation_input_tokens: Count = 0
    cache_read_input_tokens: Count = 0
    # 0 if unknown.
    context_window: Annotated[int, Meta(gt=0)] = 0


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`turn` and `subagent` are empty where there is none."""

    id: str
    time: Number  # milliseconds since 1970
    role: Role
    turn: str = ""
    subagent: Annotated[str, Meta(pattern=CUID)] = ""
    usage: EnvelopeUsage | UnsetType = UNSET
    ev: AnyEnvelopeEvent

    @property
    def is_bare_usage(self) -> bool:
        """Whether it carries only token usage outside of any turn, as some producers write it."""
        return not self.turn and self.usage is not UNSET and self.ev == ServiceEvent(text="")

    @property
    def is_ignored(self) -> bool:
        """Whether readers skip it: an agent's event outside of any turn, unless it is bare
        usage."""
        return self.role == "agent" and not self.turn and not self.is_bare_usage
