"""Binding: what a sealed value is for, said inside the seal.

One key seals a session's messages, its metadata and the calls made to it, so a relay of ill will
could show one as another, or an old call again. Readers that know nothing of this ignore the key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BOUND = "crabtalkBound"


@dataclass(frozen=True, slots=True)
class Bound:
    purpose: str
    record: str
    counter: int


def bind(value: Mapping[str, Any], to: Bound) -> dict[str, Any]:
    return {**value, BOUND: [to.purpose, to.record, to.counter]}


def bound_of(value: object) -> Bound | None:
    """What it says it is for; None for values of those who do not say."""
    given = value.get(BOUND) if isinstance(value, dict) else None
    match given:
        case [str(purpose), str(record), int(counter)] if not isinstance(counter, bool):
            return Bound(purpose, record, counter)
    return None
