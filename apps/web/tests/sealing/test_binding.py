"""Binding: what was sealed for one thing is not taken for another."""

from typing import Any

import pytest

from crabtalk_web.sealing import Bound, DataSealer, bind, bound_of, new_key


@pytest.mark.req("sealing.bound")
def test_a_value_says_inside_the_seal_what_it_is_for() -> None:
    sealer = DataSealer(new_key())
    to = Bound("rpc", "session", 7)
    opened = sealer.open(sealer.seal(bind({"id": "x"}, to)))
    assert bound_of(opened) == to
    assert opened["id"] == "x"


@pytest.mark.req("sealing.bound")
@pytest.mark.parametrize(
    "value", [None, 1, [], {}, {"crabtalkBound": None}, {"crabtalkBound": ["a", "b", True]}]
)
def test_values_of_those_who_do_not_say_are_bound_to_nothing(value: Any) -> None:
    assert bound_of(value) is None
