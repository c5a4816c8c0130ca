"""The JSON Schema of the stream, made from its types; `schema.json` is what comes of it.

`Emitted` is what we write, `Accepted` what we read; a body is read in each of its three kinds. What
holds between envelopes no schema can say.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from .bodies import AnyBody
from .envelope import Envelope
from .events import ADDED, EVENTS
from .strict import LAST_TIME, NAME

PATH = Path(__file__).with_name("schema.json")
OWN_ID = {"pattern": r"^[a-z][0-9a-z]{23}(?!\n)$"}
WHOLE = {"type": "integer", "minimum": 0}
PIXELS = {"type": "integer", "minimum": 1}
LINE = {"pattern": r"^[^\n]*\S[^\n]*$"}
FILLED = {"minLength": 1}


def schema() -> dict[str, Any]:
    (envelope, body), components = msgspec.json.schema_components(
        (Envelope, AnyBody), ref_template="#/$defs/{name}"
    )
    parts = {name: without_defaults(part) for name, part in sorted(components.items())}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The session stream: an envelope",
        "$ref": "#/$defs/Emitted",
        "$defs": {
            "Emitted": emitted(envelope),
            "Accepted": {"allOf": [accepted(parts), AGENTS_ONLY]},
            "Body": without_defaults(body),
            **parts,
        },
    }


def accepted(parts: dict[str, Any]) -> dict[str, Any]:
    """An envelope in which additions of some generations may be anything."""
    events = [
        {**parts[kind.__name__], "properties": properties}
        for tag, kind in EVENTS.items()
        for properties in [without(parts[kind.__name__]["properties"], ADDED.get(tag, ()))]
    ]
    properties = without(parts["Envelope"]["properties"], ("usage",))
    return {**parts["Envelope"], "properties": {**properties, "ev": {"anyOf": events}}}


def without(properties: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in properties.items() if key not in keys}


def emitted(envelope: dict[str, Any]) -> dict[str, Any]:
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
            when({"role": "user"}, {"properties": {"ev": tags("text", "file"), "subagent": False}}),
            when({"role": "agent"}, {"required": ["turn"]}),
            when_event("start", {"required": ["subagent"]}),
            when_event("stop", {"required": ["subagent"]}),
            when_event("tool-call-start", event(**TOOL)),
            when_event("tool-call-end", event(durationMs=WHOLE)),
            when_event("file", event(ref=FILLED, size=WHOLE, image=IMAGE)),
        ]
    }


def when(holds: dict[str, str], then: dict[str, Any]) -> dict[str, Any]:
    properties = {key: {"const": value} for key, value in holds.items()}
    return {"if": {"properties": properties, "required": list(holds)}, "then": then}


def when_event(tag: str, then: dict[str, Any]) -> dict[str, Any]:
    return {"if": {"properties": {"ev": tags(tag)}}, "then": then}


def event(**properties: Any) -> dict[str, Any]:
    return {"properties": {"ev": {"properties": properties}}}


def tags(*tags: str) -> dict[str, Any]:
    return {"properties": {"t": {"enum": list(tags)}}, "required": ["t"]}


def without_defaults(part: Any) -> Any:
    """What is left out is absent; a default would say that somebody puts it in."""
    if isinstance(part, dict):
        return {
            key: without_defaults(value)
            for key, value in part.items()
            if isinstance(value, dict) or key not in ("default", "title")
        }
    return [without_defaults(value) for value in part] if isinstance(part, list) else part


TOOL = {
    "call": FILLED,
    "name": {"pattern": rf"^{NAME.pattern}(?!\n)$"},
    "title": LINE,
    "description": LINE,
}
IMAGE = {"properties": {"width": PIXELS, "height": PIXELS, "thumbhash": FILLED}}
AGENTS_ONLY = {
    "if": {"properties": {"ev": tags("service", "start", "stop")}},
    "then": {"properties": {"role": {"const": "agent"}}},
}


def document() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PATH.write_text(document(), encoding="utf-8")
    else:
        sys.stdout.write(document())
