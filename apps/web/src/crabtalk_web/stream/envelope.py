"""Envelope: one event, with who, when and in which turn. The unit that is sealed and kept."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .envelope_events import AnyEnvelopeEvent, Number, ServiceEvent

Role = Literal["user", "agent"]
# What every reader takes for an id. The look-ahead is for Python, whose $ lets a line end pass.
CUID = r"^[0-9a-z]{2,32}(?!\n)$"

Count = Annotated[int, Meta(ge=0)]


class EnvelopeError(ValueError):
    """What is wrong with an envelope, and where in it."""


class EnvelopeUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one call of the model. How full its context is: all but `output_tokens`."""

    input_tokens: Count
    output_tokens: Count
    cache_creation_input_tokens: Count = 0
    cache_read_input_tokens: Count = 0
    # 0: not known.
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
        """Tokens and nothing else, of no turn: how some producers tell them."""
        return not self.turn and self.usage is not UNSET and self.ev == ServiceEvent(text="")

    @property
    def is_ignored(self) -> bool:
        """An agent's words outside of any turn: readers pass over them, but for bare usage."""
        return self.role == "agent" and not self.turn and not self.is_bare_usage
