"""Limits: every bound is a number above zero."""

import dataclasses

import pytest

from crabtalk.transport import TransportLimits


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TransportLimits)])
@pytest.mark.parametrize("value", [0, -1, float("nan"), "10", None, True])
def test_a_bound_that_bounds_nothing_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a number above zero"):
        TransportLimits(**{name: value})  # type: ignore[arg-type]


def test_a_fraction_of_a_second_is_a_time() -> None:
    assert TransportLimits(hello_timeout=0.5).hello_timeout == 0.5
