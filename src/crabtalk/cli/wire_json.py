"""Convert wire messages to JSON values, for programs that read the output of commands.

Numbers stay numbers, unlike in protobuf's own JSON, which writes 64-bit ones as strings. Optional
fields that are absent are left out.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import Message


def message_to_dict(message: "Message") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if is_map_field(field):
            result[field.name] = dict(getattr(message, field.name))
        elif field.is_repeated:
            result[field.name] = [
                convert_value(field, item) for item in getattr(message, field.name)
            ]
        elif not field.has_presence or message.HasField(field.name):
            result[field.name] = convert_value(field, getattr(message, field.name))
    return result


def convert_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return message_to_dict(value)
    if field.enum_type is not None:
        enum_value = field.enum_type.values_by_number.get(value)
        return enum_value.name if enum_value is not None else value
    return value


def is_map_field(field: Any) -> bool:
    """Whether the field is a map. The wire has only maps of plain values."""
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)
