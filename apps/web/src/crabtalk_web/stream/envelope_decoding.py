"""The tolerant reader: accepts every envelope that any generation of the protocol writes.

It skips unknown keys. If one generation rejects something that another ignores, it ignores it.
"""

from typing import Any

import msgspec

from .envelope import Envelope, EnvelopeError, EnvelopeUsage
from .envelope_events import ADDED_KEYS, ServiceEvent, SubagentStart, SubagentStop
from .json_values import clean_json_value, parse_json


def decode_envelope(data: bytes | str) -> Envelope:
    """Decode an envelope from JSON. Raises EnvelopeError."""
    return read_envelope(parse_json(data))


def read_envelope(value: Any) -> Envelope:
    """Build an envelope from decoded JSON. Raises EnvelopeError."""
    if not isinstance(value, dict):
        raise EnvelopeError("an envelope is an object")
    fields = clean_json_value(value)
    usage = read_usage(fields.pop("usage", None))
    if isinstance(fields.get("ev"), dict):
        fields["ev"] = drop_odd_additions(fields["ev"])
    try:
        envelope = msgspec.convert(fields, Envelope)
    except msgspec.ValidationError as error:
        raise EnvelopeError(str(error)) from None
    if envelope.role == "user" and isinstance(
        envelope.ev, ServiceEvent | SubagentStart | SubagentStop
    ):
        raise EnvelopeError(f"{fields['ev']['t']} is an agent's - at `$.role`")
    return msgspec.structs.replace(envelope, usage=usage) if usage else envelope


def read_usage(value: Any) -> EnvelopeUsage | None:
    if not isinstance(value, dict):
        return None
    counts = {
        key: int(count) if isinstance(count, float) and count.is_integer() else count
        for key, count in value.items()
    }
    try:
        return msgspec.convert(counts, EnvelopeUsage)
    except msgspec.ValidationError:
        return None


def drop_odd_additions(event: dict[str, Any]) -> dict[str, Any]:
    tag = event.get("t")
    kinds = ADDED_KEYS.get(tag, {}) if isinstance(tag, str) else {}
    return {
        key: value for key, value in event.items() if type(value) is kinds.get(key, type(value))
    }
