"""Binding: what a sealed value is for, said inside the seal.

One key seals a session's messages, its metadata and the calls made to it, so a relay of ill will
could show one as another, or an old call again. Readers that know nothing of this ignore the key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BINDING_KEY = "crabtalkBound"


@dataclass(frozen=True, slots=True)
class SealBinding:
    purpose: str
    record: str
    counter: int


def bind_value(value: Mapping[str, Any], to: SealBinding) -> dict[str, Any]:
    return {**value, BINDING_KEY: [to.purpose, to.record, to.counter]}


def read_binding(value: object) -> SealBinding | None:
    """What it says it is for; None for values of those who do not say."""
    given = value.get(BINDING_KEY) if isinstance(value, dict) else None
    match given:
        case [str(purpose), str(record), int(counter)] if not isinstance(counter, bool):
            return SealBinding(purpose, record, counter)
    return None
