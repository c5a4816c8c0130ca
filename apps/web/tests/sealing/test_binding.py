"""Binding: what was sealed for one thing is not taken for another."""

from typing import Any

import pytest

from crabtalk_web.sealing import DataSealer, SealBinding, bind_value, new_key, read_binding


@pytest.mark.req("sealing.bound")
def test_a_value_says_inside_the_seal_what_it_is_for() -> None:
    sealer = DataSealer(new_key())
    to = SealBinding("rpc", "session", 7)
    opened = sealer.open(sealer.seal(bind_value({"id": "x"}, to)))
    assert read_binding(opened) == to
    assert opened["id"] == "x"


@pytest.mark.req("sealing.bound")
@pytest.mark.parametrize(
    "value", [None, 1, [], {}, {"crabtalkBound": None}, {"crabtalkBound": ["a", "b", True]}]
)
def test_values_of_those_who_do_not_say_are_bound_to_nothing(value: Any) -> None:
    assert read_binding(value) is None
