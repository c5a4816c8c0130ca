"""Binding: a value sealed for one purpose is not accepted for another."""

from typing import Any

import pytest

from crabtalk_web.sealing import DataSealer, SealBinding, bind_value, new_key, read_binding


@pytest.mark.req("sealing.bound")
def test_a_value_is_bound_to_its_purpose_inside_the_seal() -> None:
    sealer = DataSealer(new_key())
    to = SealBinding("rpc", "session", 7)
    opened = sealer.open(sealer.seal(bind_value({"id": "x"}, to)))
    assert read_binding(opened) == to
    assert opened["id"] == "x"


@pytest.mark.req("sealing.bound")
@pytest.mark.parametrize(
    "value", [None, 1, [], {}, {"crabtalkBound": None}, {"crabtalkBound": ["a", "b", True]}]
)
def test_a_value_without_a_binding_is_bound_to_nothing(value: Any) -> None:
    assert read_binding(value) is None
