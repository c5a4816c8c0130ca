"""The fixtures of these tests, as the protocol's own package from npm judges them."""

import json
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.stream.wire_of_others import BODY, ENVELOPE, judged

pytestmark = pytest.mark.interop

FIXTURES = Path(__file__).with_name("fixtures")


def fixture(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    return rows


@pytest.mark.req("stream.reading.generations")
def test_the_published_schema_takes_and_refuses_what_our_probes_say() -> None:
    probes = fixture("probes.json")
    found = judged(ENVELOPE, [probe["value"] for probe in probes])
    assert {p["name"]: p["taken"] for p in probes} == dict(
        zip([p["name"] for p in probes], found, strict=True)
    )


@pytest.mark.req("stream.bodies.kinds")
def test_the_published_schema_takes_the_bodies_our_fixtures_say() -> None:
    bodies = fixture("bodies.json")
    found = judged(BODY, [body["value"] for body in bodies])
    assert {b["name"]: b["taken"] for b in bodies} == dict(
        zip([b["name"] for b in bodies], found, strict=True)
    )


@pytest.mark.req("stream.strict.profile")
def test_the_published_schema_takes_every_envelope_the_adapter_writes() -> None:
    lines = (FIXTURES / "emitted.jsonl").read_text(encoding="utf-8").splitlines()
    envelopes = [json.loads(line) for line in lines]
    assert len(envelopes) > 50
    assert all(judged(ENVELOPE, envelopes))
    assert all(judged(BODY, [{"role": "session", "content": one} for one in envelopes]))
