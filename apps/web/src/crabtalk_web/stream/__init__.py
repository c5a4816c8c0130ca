"""The session stream: envelopes, the nine events they carry, and the bodies that contain them.

It opens no socket and no file, and knows nothing about agents; `adapter` turns what agents do into
envelopes. docs/session-stream.md describes the format.
"""

from .envelope import Envelope, EnvelopeError, EnvelopeUsage, Role
from .envelope_decoding import decode_envelope, read_envelope
from .envelope_encoding import MAX_ENVELOPE_BYTES, check_envelope, encode_envelope
from .envelope_events import (
    EVENTS,
    AnyEnvelopeEvent,
    FileEvent,
    ImagePreview,
    ServiceEvent,
    SubagentStart,
    SubagentStop,
    TextEvent,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
    TurnStart,
    TurnStatus,
)
from .envelope_order import EnvelopeOrder, OrderError
from .ids import derive_id, is_cuid, is_own_id, new_id
from .increasing_clock import IncreasingClock
from .json_values import clean_json_value
from .message_bodies import (
    AgentBody,
    AnyBody,
    ChainLink,
    MessageMeta,
    SessionBody,
    UserBody,
    UserText,
    decode_body,
    encode_body,
    read_body,
    read_chain_link,
)

__all__ = [
    "EVENTS",
    "MAX_ENVELOPE_BYTES",
    "AgentBody",
    "AnyBody",
    "AnyEnvelopeEvent",
    "ChainLink",
    "Envelope",
    "EnvelopeError",
    "EnvelopeOrder",
    "EnvelopeUsage",
    "FileEvent",
    "ImagePreview",
    "IncreasingClock",
    "MessageMeta",
    "OrderError",
    "Role",
    "ServiceEvent",
    "SessionBody",
    "SubagentStart",
    "SubagentStop",
    "TextEvent",
    "ToolCallEnd",
    "ToolCallStart",
    "TurnEnd",
    "TurnStart",
    "TurnStatus",
    "UserBody",
    "UserText",
    "check_envelope",
    "clean_json_value",
    "decode_body",
    "decode_envelope",
    "derive_id",
    "encode_body",
    "encode_envelope",
    "is_cuid",
    "is_own_id",
    "new_id",
    "read_body",
    "read_chain_link",
    "read_envelope",
]
