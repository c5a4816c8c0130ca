"""The JSON Schema of the stream, generated from its types and written to `schema.json`.

`Emitted` describes what we write, `Accepted` what we read; a body is read in each of its three
kinds. A schema cannot express what must hold between envelopes.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from .envelope import Envelope
from .envelope_encoding import LAST_TIME, TOOL_NAME
from .envelope_events import ADDED_KEYS, EVENTS
from .message_bodies import AnyBody

PATH = Path(__file__).with_name("schema.json")
OWN_ID = {"pattern": r"^[a-z][0-9a-z]{23}(?!\n)$"}
WHOLE = {"type": "integer", "minimum": 0}
PIXELS = {"type": "integer", "minimum": 1}
LINE = {"pattern": r"^[^\n]*\S[^\n]*$"}
FILLED = {"minLength": 1}


def build_schema() -> dict[str, Any]:
    (envelope, body), components = msgspec.json.schema_components(
        (Envelope, AnyBody), ref_template="#/$defs/{name}"
    )
    parts = {name: drop_defaults(part) for name, part in sorted(components.items())}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The session stream: an envelope",
        "$ref": "#/$defs/Emitted",
        "$defs": {
            "Emitted": build_emitted(envelope),
            "Accepted": {"allOf": [build_accepted(parts), AGENTS_ONLY]},
            "Body": drop_defaults(body),
            **parts,
        },
    }


def build_accepted(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an envelope in which the keys added by some generations may have any
    type."""
    events = [
        {**parts[kind.__name__], "properties": properties}
        for tag, kind in EVENTS.items()
        for properties in [drop_keys(parts[kind.__name__]["properties"], ADDED_KEYS.get(tag, ()))]
    ]
    properties = drop_keys(parts["Envelope"]["properties"], ("usage",))
    return {**parts["Envelope"], "properties": {**properties, "ev": {"anyOf": events}}}


def drop_keys(properties: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in properties.items() if key not in keys}


def build_emitted(envelope: dict[str, Any]) -> dict[str, Any]:
    return {
        "allOf": [
            envelope,
            {
                "properties": {
                    "id": OWN_ID,
                    "turn": OWN_ID,
                    "subagent": OWN_ID,
                    "time": {**WHOLE, "maximum": LAST_TIME},
                }
            },
            constrain_when(
                {"role": "user"},
                {"properties": {"ev": match_tags("text", "file"), "subagent": False}},
            ),
            constrain_when({"role": "agent"}, {"required": ["turn"]}),
            constrain_event("start", {"required": ["subagent"]}),
            constrain_event("stop", {"required": ["subagent"]}),
            constrain_event("tool-call-start", event_properties(**TOOL)),
            constrain_event("tool-call-end", event_properties(durationMs=WHOLE)),
            constrain_event("file", event_properties(ref=FILLED, size=WHOLE, image=IMAGE)),
        ]
    }


def constrain_when(holds: dict[str, str], then: dict[str, Any]) -> dict[str, Any]:
    properties = {key: {"const": value} for key, value in holds.items()}
    return {"if": {"properties": properties, "required": list(holds)}, "then": then}


def constrain_event(tag: str, then: dict[str, Any]) -> dict[str, Any]:
    return {"if": {"properties": {"ev": match_tags(tag)}}, "then": then}


def event_properties(**properties: Any) -> dict[str, Any]:
    return {"properties": {"ev": {"properties": properties}}}


def match_tags(*tags: str) -> dict[str, Any]:
    return {"properties": {"t": {"enum": list(tags)}}, "required": ["t"]}


def drop_defaults(part: Any) -> Any:
    """Drop defaults, because an absent key is simply absent and no reader fills it in."""
    if isinstance(part, dict):
        return {
            key: drop_defaults(value)
            for key, value in part.items()
            if isinstance(value, dict) or key not in ("default", "title")
        }
    return [drop_defaults(value) for value in part] if isinstance(part, list) else part


TOOL = {
    "call": FILLED,
    "name": {"pattern": rf"^{TOOL_NAME.pattern}(?!\n)$"},
    "title": LINE,
    "description": LINE,
}
IMAGE = {"properties": {"width": PIXELS, "height": PIXELS, "thumbhash": FILLED}}
AGENTS_ONLY = {
    "if": {"properties": {"ev": match_tags("service", "start", "stop")}},
    "then": {"properties": {"role": {"const": "agent"}}},
}


def render_schema() -> str:
    return json.dumps(build_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PATH.write_text(render_schema(), encoding="utf-8")
    else:
        sys.stdout.write(render_schema())
