"""JSON Schemas for models: what msgspec says of a parameter class, without what a model can miss.

Every byte of a schema is sent with every request, so references are put in place, and titles and
empty defaults left out, and so are bounds.
"""

from typing import Any

import msgspec

EMPTY: tuple[Any, ...] = (None, [], {}, "", False)
# For a parameter that is understood but not told: a model that knows it may use it all the same.
UNTOLD = msgspec.Meta(extra_json_schema={"untold": True})
# Kept by the parser, which says so when it matters.
UNSAID = ("title", "$defs", "minItems", "minimum", "maximum", "exclusiveMinimum")


def parameters(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of an object, as a tool has it."""
    document = msgspec.json.schema(kind)
    schema: dict[str, Any] = compact(document, document.get("$defs", {}))
    schema.pop("description", None)  # the tool's own, sent beside it
    schema.setdefault("properties", {})
    return schema


def compact(schema: Any, known: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [compact(entry, known) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return compact(known[schema["$ref"].rpartition("/")[2]], known)
    if options := schema.get("anyOf"):
        # Optional is said by not being required; models need no null to leave something out.
        # Of several forms the first is told, and the others are understood.
        real = [option for option in options if option != {"type": "null"}]
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return compact({**real[0], **rest}, known)
    result = {
        key: value
        if key in ("enum", "default", "required")
        else {n: compact(entry, known) for n, entry in value.items() if "untold" not in entry}
        if key == "properties"
        else compact(value, known)
        for key, value in schema.items()
        if key not in UNSAID
        and not (key == "default" and value in EMPTY)
        and not (key == "required" and not value)
    }
    if "enum" in result:
        result.setdefault("type", "string")
    return result
