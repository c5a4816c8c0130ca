"""The fixtures of these tests, judged by the protocol's own npm package."""

import json
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.stream.happy_wire import BODY, ENVELOPE, judge_values

pytestmark = pytest.mark.interop

FIXTURES = Path(__file__).with_name("fixtures")


def read_fixture(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    return rows


@pytest.mark.req("stream.reading.generations")
def test_the_published_schema_agrees_with_our_probes() -> None:
    probes = read_fixture("probes.json")
    found = judge_values(ENVELOPE, [probe["value"] for probe in probes])
    assert {p["name"]: p["taken"] for p in probes} == dict(
        zip([p["name"] for p in probes], found, strict=True)
    )


@pytest.mark.req("stream.bodies.kinds")
def test_the_published_schema_agrees_with_our_body_fixtures() -> None:
    bodies = read_fixture("bodies.json")
    found = judge_values(BODY, [body["value"] for body in bodies])
    assert {b["name"]: b["taken"] for b in bodies} == dict(
        zip([b["name"] for b in bodies], found, strict=True)
    )


@pytest.mark.req("stream.strict.profile")
def test_the_published_schema_accepts_every_envelope_of_the_adapter() -> None:
    lines = (FIXTURES / "emitted.jsonl").read_text(encoding="utf-8").splitlines()
    envelopes = [json.loads(line) for line in lines]
    assert len(envelopes) > 50
    assert all(judge_values(ENVELOPE, envelopes))
    assert all(judge_values(BODY, [{"role": "session", "content": one} for one in envelopes]))
