"""What is accepted and what is written, probe by probe; other readers get the same probes."""

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest

from crabtalk_web.stream import (
    AgentBody,
    Envelope,
    EnvelopeError,
    SessionBody,
    UserBody,
    check_envelope,
    decode_body,
    decode_envelope,
    encode_body,
    encode_envelope,
    read_envelope,
)
from crabtalk_web.stream.schema import PATH, build_schema, render_schema

FIXTURES = Path(__file__).with_name("fixtures")
PROBES: list[dict[str, Any]] = json.loads((FIXTURES / "probes.json").read_text(encoding="utf-8"))
BODIES: list[dict[str, Any]] = json.loads((FIXTURES / "bodies.json").read_text(encoding="utf-8"))
KINDS = {"user": UserBody, "agent": AgentBody, "session": SessionBody}


def name_params(rows: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(row, id=row["name"]) for row in rows]


def is_taken(value: Any) -> bool:
    try:
        read_envelope(value)
    except EnvelopeError:
        return False
    return True


def is_written(value: Any) -> bool:
    try:
        check_envelope(msgspec.convert(value, Envelope))
    except (EnvelopeError, msgspec.ValidationError):
        return False
    return True


def fits_schema(value: Any, part: str) -> bool:
    whole = build_schema()
    validator = jsonschema.Draft202012Validator({**whole, "$ref": f"#/$defs/{part}"})
    return bool(validator.is_valid(value))


@pytest.mark.req("stream.reading.generations")
@pytest.mark.parametrize("probe", name_params(PROBES))
def test_the_reader_agrees_with_other_readers(probe: dict[str, Any]) -> None:
    assert is_taken(probe["value"]) == probe["taken"]


@pytest.mark.req("stream.strict.profile")
@pytest.mark.parametrize("probe", name_params([p for p in PROBES if "emitted" in p]))
def test_the_writer_emits_only_what_the_strictest_reader_accepts(probe: dict[str, Any]) -> None:
    assert is_written(probe["value"]) == probe["emitted"]


@pytest.mark.req("stream.schema.exported")
@pytest.mark.parametrize("probe", name_params(PROBES))
def test_the_schema_agrees_with_reader_and_writer(probe: dict[str, Any]) -> None:
    assert fits_schema(probe["value"], "Accepted") == probe["taken"]
    if "emitted" in probe:
        assert fits_schema(probe["value"], "Emitted") == probe["emitted"]


@pytest.mark.req("stream.schema.exported")
def test_the_committed_schema_is_fresh() -> None:
    assert PATH.read_text(encoding="utf-8") == render_schema(), (
        "run: python -m crabtalk_web.stream.schema --write"
    )


@pytest.mark.req("stream.strict.profile")
@pytest.mark.parametrize("probe", name_params([p for p in PROBES if p.get("emitted")]))
def test_written_envelopes_are_read_back_unchanged(probe: dict[str, Any]) -> None:
    envelope = msgspec.convert(probe["value"], Envelope)
    assert decode_envelope(encode_envelope(envelope)) == envelope
    body = decode_body(encode_body(envelope))
    assert isinstance(body, SessionBody)
    assert body.content == envelope


@pytest.mark.req("stream.bodies.kinds")
@pytest.mark.parametrize("row", name_params(BODIES))
def test_a_body_of_each_kind_is_read_and_others_are_skipped(row: dict[str, Any]) -> None:
    body = decode_body(json.dumps(row["value"]))
    assert type(body) is KINDS.get(row["kind"], type(None))
    if row["kind"] == "session" and row["taken"]:
        assert fits_schema(row["value"], "Body")


@pytest.mark.req("stream.reading.additions")
def test_added_keys_with_invalid_types_are_ignored() -> None:
    odd = {p["name"]: read_envelope(p["value"]) for p in PROBES if p.get("current") is False}
    assert not any(msgspec.to_builtins(envelope).get("usage") for envelope in odd.values())
    assert "mimeType" not in msgspec.to_builtins(odd["file with a mimeType of another shape"])["ev"]
