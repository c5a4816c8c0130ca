"""JSON Schemas for models: what msgspec says of a parameter class, without what a model can miss.

Every byte of a schema is sent with every request, so references are put in place, and titles and
empty defaults left out, and so are bounds.
"""

from typing import Any

import msgspec

EMPTY_DEFAULTS: tuple[Any, ...] = (None, [], {}, "", False)
# For a parameter that is understood but not told: a model that knows it may use it all the same.
HIDDEN_FROM_MODEL = msgspec.Meta(extra_json_schema={"untold": True})
# Kept by the parser, which says so when it matters.
OMITTED_KEYS = ("title", "$defs", "minItems", "minimum", "maximum", "exclusiveMinimum")


def build_parameters_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of an object, as a tool has it."""
    document = msgspec.json.schema(kind)
    schema: dict[str, Any] = compact_schema(document, document.get("$defs", {}))
    schema.pop("description", None)  # the tool's own, sent beside it
    schema.setdefault("properties", {})
    return schema


def compact_schema(schema: Any, known: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [compact_schema(entry, known) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return compact_schema(known[schema["$ref"].rpartition("/")[2]], known)
    if options := schema.get("anyOf"):
        # Optional is said by not being required; models need no null to leave something out.
        # Of several forms the first is told, and the others are understood.
        real = [option for option in options if option != {"type": "null"}]
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return compact_schema({**real[0], **rest}, known)
    result = {
        key: value
        if key in ("enum", "default", "required")
        else {
            n: compact_schema(entry, known) for n, entry in value.items() if "untold" not in entry
        }
        if key == "properties"
        else compact_schema(value, known)
        for key, value in schema.items()
        if key not in OMITTED_KEYS
        and not (key == "default" and value in EMPTY_DEFAULTS)
        and not (key == "required" and not value)
    }
    if "enum" in result:
        result.setdefault("type", "string")
    return result
