"""The example that is checked with other readers is what the adapter writes, and our reader accepts
it too."""

from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest

from apps.web.tests.adapter.example_session import build_example
from crabtalk_web.stream import EVENTS, EnvelopeOrder, SessionBody, decode_body, decode_envelope
from crabtalk_web.stream.schema import build_schema

PATH = Path(__file__).parents[1] / "stream" / "fixtures" / "emitted.jsonl"
LINES = PATH.read_text(encoding="utf-8").splitlines()


@pytest.mark.req("adapter.deterministic")
def test_the_example_matches_the_stored_fixture() -> None:
    assert build_example() == LINES, (
        f"run: python -m apps.web.tests.adapter.example_session > {PATH.name}"
    )


@pytest.mark.req("stream.strict.profile")
def test_the_example_has_every_event_and_is_valid_and_in_order() -> None:
    validator = jsonschema.Draft202012Validator(build_schema())
    order = EnvelopeOrder()
    seen = set()
    for line in LINES:
        validator.validate(msgspec.json.decode(line))
        envelope = decode_envelope(line)
        order.check_next(envelope)
        seen.add(type(envelope.ev))
        body = decode_body(f'{{"role":"session","content":{line}}}')
        assert isinstance(body, SessionBody)
        assert body.content == envelope
    assert seen == set(EVENTS.values())
    assert not order.turn
