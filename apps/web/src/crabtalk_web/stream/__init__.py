"""The session stream: envelopes, the nine events they carry, and the bodies they travel in.

It opens no socket and no file, and knows of no agent; `adapter` makes envelopes of what agents do.
docs/session-stream.md describes the whole of it.
"""

from .bodies import (
    AgentBody,
    AnyBody,
    Chain,
    MessageMeta,
    SessionBody,
    UserBody,
    UserText,
    decode_body,
    encode_body,
    read_body,
    read_chain,
)
from .envelope import Envelope, EnvelopeError, Role, Usage
from .events import (
    EVENTS,
    AnyEvent,
    File,
    Image,
    Service,
    Start,
    Status,
    Stop,
    Text,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
    TurnStart,
)
from .ids import derived_id, is_cuid, is_own, new_id
from .order import Order, OrderError
from .plain import plain
from .reading import decode, read_envelope
from .strict import LARGEST, check, encode
from .times import Times

__all__ = [
    "EVENTS",
    "LARGEST",
    "AgentBody",
    "AnyBody",
    "AnyEvent",
    "Chain",
    "Envelope",
    "EnvelopeError",
    "File",
    "Image",
    "MessageMeta",
    "Order",
    "OrderError",
    "Role",
    "Service",
    "SessionBody",
    "Start",
    "Status",
    "Stop",
    "Text",
    "Times",
    "ToolCallEnd",
    "ToolCallStart",
    "TurnEnd",
    "TurnStart",
    "Usage",
    "UserBody",
    "UserText",
    "check",
    "decode",
    "decode_body",
    "derived_id",
    "encode",
    "encode_body",
    "is_cuid",
    "is_own",
    "new_id",
    "plain",
    "read_body",
    "read_chain",
    "read_envelope",
]
