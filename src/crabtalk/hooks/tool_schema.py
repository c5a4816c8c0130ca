"""JSON Schemas of tools: msgspec's schema of a parameter class, made as short as possible.

Schemas are sent with every request, so references are replaced by what they refer to, and titles,
empty defaults and bounds are left out.
"""

from typing import Any

import msgspec

EMPTY_DEFAULTS: tuple[Any, ...] = (None, [], {}, "", False)
# Marks a parameter that is accepted but not in the schema. A model that knows it may use it.
HIDDEN_FROM_MODEL = msgspec.Meta(extra_json_schema={"hidden": True})
# The parser still enforces these, and reports violations.
OMITTED_KEYS = ("title", "$defs", "minItems", "minimum", "maximum", "exclusiveMinimum")


def build_parameters_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema of a tool's parameters."""
    document = msgspec.json.schema(kind)
    schema: dict[str, Any] = compact_schema(document, document.get("$defs", {}))
    schema.pop("description", None)  # sent as the tool's description already
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
        # Optional parameters are those not in `required`, so null is left out. Of several other
        # types only the first is shown; the parser accepts all.
        real = [option for option in options if option != {"type": "null"}]
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return compact_schema({**real[0], **rest}, known)
    result = {
        key: value
        if key in ("enum", "default", "required")
        else {
            n: compact_schema(entry, known) for n, entry in value.items() if "hidden" not in entry
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
