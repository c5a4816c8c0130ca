"""Objects: messages of the wire as JSON has them, for programs that read what commands print.

Numbers stay numbers, which protobuf's own JSON does not promise; what may be absent, and is, is
left out.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import Message


def message_to_dict(message: "Message") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if is_map_field(field):
            found[field.name] = dict(getattr(message, field.name))
        elif field.is_repeated:
            found[field.name] = [
                convert_value(field, each) for each in getattr(message, field.name)
            ]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = convert_value(field, getattr(message, field.name))
    return found


def convert_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return message_to_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return value


def is_map_field(field: Any) -> bool:
    """Of plain values; the wire has no others."""
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)
